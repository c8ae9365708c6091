// A button that copies each block of code and each whole id; without a clipboard it selects the text.
function addCopy(place, shown, text) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      shown.textContent = text;
      getSelection().selectAllChildren(shown);
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  place.append(button);
}
for (const block of document.querySelectorAll("pre")) {
  const code = block.querySelector("code");
  addCopy(block, code, code.textContent);
  // A line of a command ends at a blank, not at a hyphen of an option.
  if (block.className === "shell") code.innerHTML = code.innerHTML.replace(/[^ ]+/g, '<span class="word">$&</span>');
}
for (const cell of document.querySelectorAll("th.id")) addCopy(cell, cell.querySelector("bdi"), cell.title);
// A text box above a long table: rows whose cells or whole id contain its words, also those of the TSV alone.
for (const table of document.querySelectorAll(".filtered")) {
  const box = document.createElement("input");
  box.type = "search";
  box.className = "filter";
  box.placeholder = "Filter: genus, family, sequence, ...";
  box.setAttribute("aria-label", box.placeholder);
  box.addEventListener("input", () => {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of table.querySelectorAll("tbody tr")) {
      const text = `${row.textContent} ${row.cells[0].title}`.toLowerCase();
      row.style.display = !words.length ? "" : words.every((word) => text.includes(word)) ? "table-row" : "none";
    }
  });
  table.before(box);
}
// The name of a point at once, in place of the one that browsers show after a second.
const hint = document.createElement("div");
hint.className = "hint";
hint.hidden = true;
document.body.append(hint);
for (const name of document.querySelectorAll("use > title")) {
  name.parentNode.dataset.name = name.textContent;
  name.remove();
}
document.addEventListener("pointerover", (event) => {
  const name = event.target.closest("use")?.dataset.name;
  hint.hidden = !name;
  if (!name) return;
  hint.textContent = name;
  const place = event.target.getBoundingClientRect();
  hint.style.left = `${Math.min(place.right + 8, innerWidth - hint.offsetWidth - 8) + scrollX}px`;
  hint.style.top = `${place.bottom + 6 + scrollY}px`;
});
// Paper has no folded parts.
addEventListener("beforeprint", () => {
  for (const part of document.querySelectorAll("details")) part.open = true;
});
