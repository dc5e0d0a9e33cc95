"""Lists as they are found: well-formed, odd, broken, dangerous."""

from pathlib import Path

import pytest

from examples.feeds import opml
from examples.feeds.opml import BadList, Listed

HEAD = '<?xml version="1.0" encoding="UTF-8"?><opml version="1.0"><head/><body>'
TAIL = "</body></opml>"
URL = "https://a.example/rss"
DTD = '<!DOCTYPE opml SYSTEM "http://x.example/opml.dtd">'


def outline(attributes: str) -> str:
    return f"{HEAD}<outline {attributes}/>{TAIL}"


def titled(title: str, said: str, done: str) -> bytes:
    """A list in one encoding that says it is in another."""
    return outline(f'text="{title}" xmlUrl="{URL}"').replace("UTF-8", said).encode(done)


PLAIN = outline(f'type="rss" text="A" xmlUrl="{URL}"')

TABLE: list[tuple[str, str | bytes, str, str]] = [
    ("plain", PLAIN, "A", URL),
    ("title before text", outline(f'text="B" title="A" xmlUrl="{URL}"'), "A", URL),
    ("attribute in another case", outline(f'text="A" xmlurl="{URL}"'), "A", URL),
    ("spaces and line ends around", outline(f'text=" A\n" xmlUrl=" {URL}\n"'), "A", URL),
    ("no title", outline(f'xmlUrl="{URL}"'), "", URL),
    ("the feed scheme", outline('text="A" xmlUrl="feed://a.example/rss"'), "A", "http://a.example/rss"),
    ("the feed prefix", outline(f'text="A" xmlUrl="feed:{URL}"'), "A", URL),
    ("escaped ampersand", outline(f'text="A" xmlUrl="{URL}?a=1&amp;b"'), "A", f"{URL}?a=1&b"),
    ("bare ampersand", outline(f'text="A" xmlUrl="{URL}?a=1&b=2"'), "A", f"{URL}?a=1&b=2"),
    ("unknown entity", outline(f'text="A &nbsp; B" xmlUrl="{URL}"'), "A B", URL),
    ("quotes within quotes", outline(f'text="The "A"" xmlUrl="{URL}"'), 'The "A"', URL),
    ("html within quotes", outline(f'text="A" description="<a href="x">" xmlUrl="{URL}"'), "A", URL),
    ("cut off", PLAIN.removesuffix(TAIL), "A", URL),
    ("no declaration", PLAIN.partition("?>")[2], "A", URL),
    ("a doctype without entities", DTD + PLAIN.partition("?>")[2], "A", URL),
    ("utf-8 mark", b"\xef\xbb\xbf" + PLAIN.encode(), "A", URL),
    ("utf-16", titled("é", "UTF-16", "utf-16"), "é", URL),
    ("latin-1 said and done", titled("é", "ISO-8859-1", "latin-1"), "é", URL),
    ("windows text called utf-8", titled("é", "UTF-8", "cp1252"), "é", URL),
    ("an encoding of several bytes", titled("あ", "Shift_JIS", "shift_jis"), "あ", URL),
    ("an encoding that always fails", titled("A", "undefined", "utf-8"), "A", URL),
    ("an encoding nobody knows", titled("A", "x-klingon", "utf-8"), "A", URL),
]


@pytest.mark.parametrize(("name", "data", "title", "url"), TABLE, ids=[row[0] for row in TABLE])
def test_a_file(tmp_path: Path, name: str, data: str | bytes, title: str, url: str) -> None:
    file = tmp_path / "list.opml"
    file.write_bytes(data if isinstance(data, bytes) else data.encode())
    assert opml.read(file).feeds == [Listed(url, title)]


BOMB = (
    '<?xml version="1.0"?><!DOCTYPE opml [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>'
    '<opml><body><outline text="&b;" xmlUrl="https://a.example/rss"/></body></opml>'
)
THIEF = BOMB.replace('<!ENTITY a "aaaaaaaaaa">', '<!ENTITY a SYSTEM "file:///etc/passwd">')

BAD = [
    ("empty", b" \n", "empty"),
    ("no xml", b"hello", "not an OPML file"),
    ("another xml", b"<rss><channel/></rss>", "root element is <rss>"),
    ("no feeds", f'{HEAD}<outline text="folder"/>{TAIL}'.encode(), "no outline with a web address"),
    ("entity bomb", BOMB.encode(), "refused: it declares entities"),
    ("entity that reads a file", THIEF.encode(), "refused: it declares entities"),
    ("too deep", (HEAD + "<outline>" * 500 + "</outline>" * 500 + TAIL).encode(), "nested deeper"),
    ("too large", b"x" * ((8 << 20) + 1), "larger than 8 MiB"),
]


@pytest.mark.parametrize(("name", "data", "reason"), BAD, ids=[row[0] for row in BAD])
def test_a_file_that_is_no_list_is_named_with_the_reason(tmp_path: Path, name: str, data: bytes, reason: str) -> None:
    file = tmp_path / "list.opml"
    file.write_bytes(data)
    with pytest.raises(BadList, match=reason) as caught:
        opml.read(file)
    assert str(file) in str(caught.value)


def test_folders_of_outlines_nest_and_repeats_are_counted(tmp_path: Path) -> None:
    nested = (
        '<outline text="F"><outline text="G"><outline text="A" xmlUrl="https://a.example/rss"/></outline></outline>'
    )
    again = '<outline text="A, again" xmlUrl="https://a.example/rss"/><outline text="B" xmlUrl="https://b.example/"/>'
    (tmp_path / "1.opml").write_text(HEAD + nested + TAIL)
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "2.OPML").write_text(HEAD + again + TAIL)
    (tmp_path / "notes.txt").write_text("not a list")
    read = opml.read(tmp_path)
    assert read.feeds == [Listed(URL, "A"), Listed("https://b.example/", "B")]
    assert (read.files, read.duplicates, read.skipped) == (2, 1, [])


@pytest.mark.parametrize(
    ("attributes", "problem"),
    [
        ('type="rss" text="A"', "no xmlUrl"),
        ('text="A" xmlUrl=""', "no xmlUrl"),
        ('text="A" xmlUrl="ftp://a.example/rss"', "not a web address"),
        ('text="A" xmlUrl="javascript:alert(1)"', "not a web address"),
        ('text="A" xmlUrl="https://"', "not a web address"),
        ('text="A" xmlUrl="https://a.example:99999/"', "not a web address"),
        ('text="A" xmlUrl="https://[a/"', "not a web address"),
        ('text="A" xmlUrl="https://a.example/a&#9;b"', "not a web address"),
        (f'text="A" xmlUrl="https://a.example/{"x" * 5000}"', "characters"),
    ],
)
def test_an_outline_without_a_usable_address_is_skipped_and_named(
    tmp_path: Path, attributes: str, problem: str
) -> None:
    good = '<outline text="G" xmlUrl="https://g.example/"/>'
    (tmp_path / "list.opml").write_text(f"{HEAD}<outline {attributes}/>{good}{TAIL}")
    read = opml.read(tmp_path / "list.opml")
    assert [feed.title for feed in read.feeds] == ["G"]
    assert len(read.skipped) == 1
    assert problem in read.skipped[0]


def test_a_missing_file_and_an_empty_folder_are_said(tmp_path: Path) -> None:
    with pytest.raises(BadList, match="no such file"):
        opml.read(tmp_path / "none.opml")
    with pytest.raises(BadList, match="in this folder"):
        opml.read(tmp_path)


def test_the_list_that_comes_with_the_example() -> None:
    read = opml.read(Path(opml.__file__).with_name("feeds.opml"))
    assert len(read.feeds) == 30
    assert not read.skipped
