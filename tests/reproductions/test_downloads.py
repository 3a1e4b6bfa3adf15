"""Downloads, from a server on this machine that lies, stalls and breaks off; and the corpora that are fetched so."""

from __future__ import annotations

import gzip
import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from command_line import Command
from reproductions.corpora import catalogue, downloads
from reproductions.corpora.catalogue import CORPORA, Corpus, File, measure_file
from reproductions.corpora.downloads import download
from seqwise.errors import InputError

CONTENT = bytes(range(256)) * 1000
SHA256 = hashlib.sha256(CONTENT).hexdigest()
Answer = Callable[["Handler"], None]


class Server(ThreadingHTTPServer):
    """Answers by path; keeps which ranges were asked for."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: dict[str, Answer] = {}
        self.asked: list[tuple[str, str | None]] = []

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_port}{path}"


UNSAID = -1  # the length of what a server sends


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers["Range"]))
        answer = self.server.answers.get(self.path)
        if answer is None:
            self.send_error(404)
        else:
            answer(self)

    def log_message(self, *arguments: object) -> None:
        pass

    def say(self, content: bytes, *, status: int = 200, length: int | None = None, **headers: str) -> None:
        self.send_response(status)
        if length != UNSAID:
            self.send_header("Content-Length", str(len(content) if length is None else length))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(content)

    @property
    def first(self) -> int:
        return int((self.headers["Range"] or "bytes=0-").removeprefix("bytes=").rstrip("-"))


def whole(handler: Handler) -> None:
    """As a good server does, with ranges."""
    if handler.first:
        span = f"bytes {handler.first}-{len(CONTENT) - 1}/{len(CONTENT)}"
        handler.say(CONTENT[handler.first :], status=206, Content_Range=span)
    else:
        handler.say(CONTENT)


def in_pieces(handler: Handler) -> None:
    """A hundred thousand bytes of what was promised, then nothing more."""
    rest = CONTENT[handler.first :]
    span = f"bytes {handler.first}-{len(CONTENT) - 1}/{len(CONTENT)}"
    status = 206 if handler.first else 200
    handler.say(rest[:100_000], status=status, length=len(rest), Content_Range=span)
    handler.connection.close()


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.shutdown()


def fetch(server: Server, target: Path, *, timeout: float = 5.0) -> None:
    download(server.url("/a"), target, size=len(CONTENT), sha256=SHA256, timeout=timeout, pause=0.001)


def test_a_file_is_fetched_whole(server: Server, tmp_path: Path) -> None:
    server.answers["/a"] = whole
    seen: list[int] = []
    target = tmp_path / "new" / "folder" / "a"
    download(server.url("/a"), target, size=len(CONTENT), sha256=SHA256, on_bytes=seen.append)
    assert target.read_bytes() == CONTENT and [one.name for one in target.parent.iterdir()] == ["a"]
    assert seen == sorted(seen) and seen[-1] == len(CONTENT)


def test_what_breaks_off_is_continued(server: Server, tmp_path: Path) -> None:
    server.answers["/a"] = in_pieces
    fetch(server, tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == CONTENT
    assert [span for _, span in server.asked] == [None, "bytes=100000-", "bytes=200000-"]


def test_another_call_continues_too(server: Server, tmp_path: Path) -> None:
    (tmp_path / ".a.partial").write_bytes(CONTENT[:5000])
    server.answers["/a"] = whole
    fetch(server, tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == CONTENT and server.asked == [("/a", "bytes=5000-")]


def test_a_server_without_ranges_sends_all_of_it_again(server: Server, tmp_path: Path) -> None:
    (tmp_path / ".a.partial").write_bytes(b"x" * 5000)
    server.answers["/a"] = lambda handler: handler.say(CONTENT)
    fetch(server, tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == CONTENT


def test_a_range_that_was_not_asked_for_is_not_appended(server: Server, tmp_path: Path) -> None:
    def another(handler: Handler) -> None:
        handler.say(CONTENT, status=206, Content_Range=f"bytes 0-{len(CONTENT) - 1}/{len(CONTENT)}")

    (tmp_path / ".a.partial").write_bytes(CONTENT[:5000])
    server.answers["/a"] = another
    fetch(server, tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (CONTENT[:-1] + b"!", "its SHA-256 is another"),
        (CONTENT + b"!", "it has more than 256,000 bytes"),
        (CONTENT[:-1], "broke off (255,999 of 256,000 bytes have come)"),
        (b"<html>sign in</html>", "broke off"),
    ],
)
def test_a_server_that_lies_is_found_out(server: Server, tmp_path: Path, content: bytes, said: str) -> None:
    server.answers["/a"] = lambda handler: handler.say(content)
    (tmp_path / "a").write_text("what was there before")
    with pytest.raises(InputError, match=said.replace("(", r"\(").replace(")", r"\)")):
        fetch(server, tmp_path / "a")
    assert (tmp_path / "a").read_text() == "what was there before"


def test_after_a_lie_the_true_file_can_still_be_had(server: Server, tmp_path: Path) -> None:
    for lie in (CONTENT[:-1] + b"!", CONTENT * 2):
        server.answers["/a"] = lambda handler, lie=lie: handler.say(lie)  # type: ignore[misc]
        with pytest.raises(InputError):
            fetch(server, tmp_path / "a")
    server.answers["/a"] = whole
    fetch(server, tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == CONTENT


def test_a_flood_is_not_read_to_its_end(server: Server, tmp_path: Path) -> None:
    sent: list[int] = []

    def flood(handler: Handler) -> None:
        handler.say(b"", length=10**12)
        with pytest.raises(OSError):
            while True:
                sent.append(handler.wfile.write(CONTENT))

    server.answers["/a"] = flood
    with pytest.raises(InputError, match="more than"):
        fetch(server, tmp_path / "a")
    # Beside what was read, what the buffers of the two sockets took.
    assert sum(sent) < 20_000_000 and (tmp_path / ".a.partial").stat().st_size == 0


def test_a_server_that_stalls_is_left(server: Server, tmp_path: Path) -> None:
    released = threading.Event()

    def stall(handler: Handler) -> None:
        rest = CONTENT[handler.first :]
        span = f"bytes {handler.first}-{len(CONTENT) - 1}/{len(CONTENT)}"
        handler.say(rest[:1000], status=206 if handler.first else 200, length=len(rest), Content_Range=span)
        handler.wfile.flush()
        released.wait(30)

    server.answers["/a"] = stall
    begun = time.monotonic()
    with pytest.raises(InputError, match=r"broke off \(.*timed out"):
        fetch(server, tmp_path / "a", timeout=0.2)
    released.set()
    # Four attempts of two tenths of a second, on a machine that may be busy; not the half minute that it would hold on.
    assert time.monotonic() - begun < 20
    assert (tmp_path / ".a.partial").stat().st_size == 4000


@pytest.mark.parametrize(("status", "times"), [(404, 1), (403, 1), (500, 4), (503, 4), (429, 4)])
def test_refusals_that_may_pass_are_tried_again(server: Server, tmp_path: Path, status: int, times: int) -> None:
    server.answers["/a"] = lambda handler: handler.send_error(status)
    with pytest.raises(InputError, match=f"the server says {status}"):
        fetch(server, tmp_path / "a")
    assert len(server.asked) == times and not (tmp_path / "a").exists()


def test_no_server_at_all(server: Server, tmp_path: Path) -> None:
    server.shutdown()
    server.server_close()
    with pytest.raises(InputError, match=r"broke off .*refused"):
        fetch(server, tmp_path / "a")


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://example.org/a", "a", "http:///a"])
def test_only_the_web(url: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is no address of a file on the web"):
        download(url, tmp_path / "a", size=1, sha256=SHA256)


def test_a_redirect_leads_to_the_web_only(server: Server, tmp_path: Path) -> None:
    server.answers["/b"] = whole
    server.answers["/a"] = lambda handler: handler.say(b"", status=302, Location="/b")
    fetch(server, tmp_path / "a")
    server.answers["/a"] = lambda handler: handler.say(b"", status=302, Location="file:///etc/passwd")
    (tmp_path / "a").unlink()
    with pytest.raises(InputError, match="302"):
        fetch(server, tmp_path / "a")
    assert not (tmp_path / "a").exists()


# ---- Corpora --------------------------------------------------------------------------------------------------------


@pytest.fixture
def one(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A corpus of three files, of which a source has two, and a copy all of them; the folder to put corpora in."""
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "plain").write_bytes(b"plain")
    with gzip.GzipFile(copy / "packed.gz", "wb", compresslevel=1, mtime=7) as file:
        file.write(CONTENT)
    (copy / "made of several").write_bytes(b"made")
    listed = {path.name: measure_file(path) for path in copy.iterdir()}
    urls = {"plain": server.url("/source/plain"), "packed.gz": server.url("/source/unpacked")}
    monkeypatch.setattr(
        catalogue, "CORPORA", {"one": Corpus("c", (), "CC0", published=urls), "two": CORPORA["cmudict"]}
    )
    monkeypatch.setattr(catalogue, "_tables", lambda: {"one": listed})
    for path in copy.iterdir():
        answer = path.read_bytes()
        url = f"/copy/one/{path.name.replace(' ', '%20')}"
        server.answers[url] = lambda handler, answer=answer: handler.say(answer)  # type: ignore[misc]
    server.answers["/source/plain"] = lambda handler: handler.say(b"plain")
    server.answers["/source/unpacked"] = whole
    monkeypatch.setenv("SEQWISE_DATA", str(tmp_path / "corpora"))
    return tmp_path / "corpora" / "one"


def test_a_corpus_from_its_source(one: Path, corpora_command: Command, server: Server) -> None:
    said = corpora_command("download", "one")
    assert said.code == 0, said.err
    assert said.out.splitlines()[0] == f"one: 2 files fetched into {one}; licence: CC0"
    assert said.out.splitlines()[1].endswith(": made of several")
    assert gzip.decompress((one / "packed.gz").read_bytes()) == CONTENT
    assert {path.name for path in one.iterdir()} == {"plain", "packed.gz"}
    # Compressed by us, of other bytes than those in the table, and as good.
    assert "made of several is missing" in corpora_command("check", "one").out
    (one / "made of several").write_bytes(b"made")
    assert corpora_command("check", "one").out == "one: in order (3 files)\n"
    asked = len(server.asked)
    assert corpora_command("download", "one").out.startswith("one: 0 files fetched")
    assert len(server.asked) == asked


def test_a_corpus_from_a_copy(one: Path, corpora_command: Command, server: Server, tmp_path: Path) -> None:
    ended = corpora_command("download", "one", "--mirror", server.url("/copy/"), "--to", tmp_path / "elsewhere")
    assert ended.code == 0, ended.err
    for path in (tmp_path / "copy").iterdir():
        assert (tmp_path / "elsewhere" / "one" / path.name).read_bytes() == path.read_bytes()


def test_only_what_is_wrong_is_fetched(one: Path, corpora_command: Command, server: Server) -> None:
    assert corpora_command("download", "one", "--mirror", server.url("/copy")).code == 0
    (one / "plain").write_bytes(b"plaid")
    server.asked.clear()
    assert corpora_command("download", "one", "--mirror", server.url("/copy")).code == 0
    assert server.asked == [("/copy/one/plain", None)] and (one / "plain").read_bytes() == b"plain"


def test_what_cannot_be_fetched_says_so(
    one: Path, corpora_command: Command, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "there is no corpus 'on'; did you mean 'one'?" in corpora_command("download", "on").complaint
    monkeypatch.setattr(downloads, "ATTEMPTS", 1)
    assert "404" in corpora_command("download", "one", "--mirror", server.url("/nowhere")).complaint
    monkeypatch.setattr(catalogue, "CORPORA", {"one": Corpus("c", (), "CC0")})
    assert "give --mirror URL" in corpora_command("download", "one").complaint
    monkeypatch.delenv("SEQWISE_DATA")
    assert "give --to FOLDER" in corpora_command("download", "one").complaint


def test_what_is_compressed_in_a_file_is_compared_and_no_more_is_read(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "a.gz", "wb") as file:
        file.write(b"a" * 1000)
    wanted = measure_file(tmp_path / "a.gz")
    assert wanted.contents == File(1000, hashlib.sha256(b"a" * 1000).hexdigest())
    for content, is_right in ((b"a" * 1000, True), (b"b" * 1000, False), (bytes(9_000_000), False)):
        with gzip.open(tmp_path / "a.gz", "wb", compresslevel=1) as file:
            file.write(content)
        ((_, fault),) = catalogue.verify(tmp_path, {"a.gz": wanted})
        assert (fault == "") == is_right
    with gzip.open(tmp_path / "a.gz") as bomb:
        assert catalogue._measure(bomb, most=1000).size < 9_000_000
    (tmp_path / "a.gz").write_bytes(b"not compressed")
    assert dict(catalogue.verify(tmp_path, {"a.gz": wanted}))["a.gz"]


TREES = "1\tYes\tyes\tINTJ\tUH\t_\t0\troot\t_\t_\n\n1\tNo\tno\tINTJ\tUH\t_\t0\troot\t_\t_\n\n"
SUPERTAGS = "Yes\troot^\tUH|_|root\tINTJ\n\nNo\troot^\tUH|_|root\tINTJ\n\n"


@pytest.mark.parametrize("whole", [True, False], ids=["of known length", "of unknown length"])
def test_a_corpus_is_made_of_trees(
    one: Path, corpora_command: Command, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    with gzip.open(tmp_path / "dev.tsv.gz", "wb") as file:
        file.write(SUPERTAGS.encode())
    listed = {"dev.tsv.gz": measure_file(tmp_path / "dev.tsv.gz")}
    corpus = Corpus("c", (), "CC0", trees={"dev.tsv.gz": server.url("/dev.conllu")})
    monkeypatch.setattr(catalogue, "CORPORA", {"one": corpus})
    monkeypatch.setattr(catalogue, "_tables", lambda: {"one": listed})

    def say(text: str) -> None:
        server.answers["/dev.conllu"] = lambda handler: handler.say(text.encode(), length=None if whole else UNSAID)

    say(TREES.replace("root", "dep"))
    assert (
        "dev.conllu holds other trees: what is made of them is another file"
        in corpora_command("download", "one").complaint
    )
    say("<html>moved</html>")
    said = corpora_command("download", "one").complaint
    assert "/dev.conllu holds no trees: line 1: 1 column where 10 were expected; look at the source" in said
    assert list(one.iterdir()) == []
    say(TREES)
    assert corpora_command("download", "one").out.startswith("one: 1 files fetched")
    assert gzip.decompress((one / "dev.tsv.gz").read_bytes()).decode() == SUPERTAGS
    assert [path.name for path in one.iterdir()] == ["dev.tsv.gz"]
    assert corpora_command("check", "one").out == "one: in order (1 files)\n"


def test_of_a_file_of_unknown_size_no_more_is_read_than_it_may_have(server: Server, tmp_path: Path) -> None:
    for length in (None, UNSAID):
        server.answers["/a"] = lambda handler, length=length: handler.say(CONTENT, length=length)  # type: ignore[misc]
        with pytest.raises(InputError, match=f"more than {len(CONTENT) - 1:,} bytes"):
            downloads.download(server.url("/a"), tmp_path / "a", size=None, sha256=None, most=len(CONTENT) - 1)
        downloads.download(server.url("/a"), tmp_path / "a", size=None, sha256=None, most=len(CONTENT))
        assert (tmp_path / "a").read_bytes() == CONTENT


def test_published_files_are_pinned_and_listed() -> None:
    for name, corpus in CORPORA.items():
        for file, url in (corpus.published | corpus.trees).items():
            assert file in catalogue.listed_files(name)
            commit = url.split("/")[5]
            assert len(commit) == 40 and any(commit in source for source in corpus.sources), url
