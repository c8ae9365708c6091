"""Conditions of --where: comparisons, lists, `and`, quotes, missing values, errors."""

from __future__ import annotations

import pytest

from aam.contract.errors import DataError, UsageError
from aam.data.metadata import Metadata

IDS = ("a", "b", "c", "d", "e")
COLUMNS = {
    "age": ["3", "4.50", "18.0", "", "40"],
    "site": ["gut", "skin", "gut", "gut", "missing"],
    "body site": ["oral cavity", "salt and pepper", "x, y", "oral cavity", "oral cavity"],
    "diagnosis": ["Crohn's disease", "none given", "UC", "UC", "Crohn's disease"],
    "subject": ["007", "7", "18.0", "18", "x"],
    "abx": ["None", "NA", "high", "low", ""],
}
METADATA = Metadata(IDS, COLUMNS)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (None, "abcde"),
        ("site=gut", "acd"),
        ("site!=gut", "b"),
        ("age<18", "ab"),
        ("age>3 and age<40", "bc"),
        ("age>=4.5 AND site in (gut, skin)", "bc"),
        ("age=18", "c"),
        ("subject=18", "cd"),
        ("body site=oral cavity", "ade"),
        ("[body site]='salt and pepper'", "b"),
        ("\"body site\" in ('x, y', 'salt and pepper') and age!=4.50", "c"),
        ("diagnosis=Crohn's disease and site=gut", "a"),
        ("body site!='x, y'", "abde"),
        ("diagnosis in (UC,Crohn's disease) and age>=3", "ace"),
        # A word for a missing value is meant where the condition names it.
        ("abx in (None, high)", "ac"),
        ("abx=None", "a"),
        ("abx!=None", "cd"),
        ("abx=NA", "b"),
        ("abx!=low", "c"),
    ],
)
def test_samples_that_meet_a_condition(condition: str | None, expected: str) -> None:
    assert "".join(IDS[row] for row in METADATA.rows_where(condition, IDS)) == expected


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("", "write COLUMN=VALUE"),
        ("=gut", "write COLUMN=VALUE"),
        ("site=", "'site' has no value"),
        ("site in ()", "'site' has no value"),
        ("age>3 or site=gut", "'3 or site=gut' after '>' is not a number"),
        ("site!=gut or age<5", "'or' in the value of 'site'; put the value in quotes"),
        ("site!=gut && age>3", "'&' in the value of 'site'; put"),
        ("site!=gut, skin", "',' in the value of 'site'; put"),
        ("body site=salt and pepper", "values that contain ' and ' in quotes"),
    ],
)
def test_invalid_conditions_are_refused(condition: str, expected: str) -> None:
    with pytest.raises(UsageError, match="Invalid condition") as caught:
        METADATA.rows_where(condition, IDS)
    assert expected in str(caught.value)


def test_a_value_to_exclude_that_no_sample_has_is_warned_of(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert len(METADATA.rows_where("site!=Gut", IDS)) == 4
    assert "--where excludes site=Gut, but no sample has this value." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("site=skin and age>5", "in 1 samples 'age' has 4.50"),
        ("site>5", "is not numeric, so '>' cannot order"),
        ("sites=gut", "no column 'sites'"),
    ],
)
def test_conditions_that_the_metadata_cannot_meet_are_refused(
    condition: str, expected: str
) -> None:
    with pytest.raises(DataError) as caught:
        METADATA.rows_where(condition, IDS)
    assert expected in str(caught.value)
