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
}
for (const cell of document.querySelectorAll("th.id")) addCopy(cell, cell.querySelector("bdi"), cell.title);
