"""Corpora that are fetched from their sources or a mirror, or made of trees; servers that fail or send other files."""

from __future__ import annotations

import gzip
import hashlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from command_line import Command
from reproductions.corpora import catalogue, fetching
from reproductions.corpora.catalogue import Corpus, corpora, measure_file

pytest.importorskip("pooch", reason="needs pooch, of the extra reproductions")

CONTENT = bytes(range(256)) * 1000


class Server(ThreadingHTTPServer):
    """Answers by path with a status and bytes; keeps what was asked for."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: dict[str, bytes | int] = {}
        self.asked: list[str] = []

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_port}{path}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        answer = self.server.answers.get(self.path, 404)
        if isinstance(answer, int):
            self.send_error(answer)
        else:
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.shutdown()


Offer = Callable[[dict[str, catalogue.File]], None]


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch) -> Offer:
    """Let the catalogue hold one corpus of these files."""

    def replaced(files: dict[str, catalogue.File]) -> None:
        known = {"one": Corpus("c", (), "CC0", files), "two": corpora()["cmudict"]}
        monkeypatch.setattr(catalogue, "corpora", lambda: known)

    monkeypatch.setattr(fetching, "RETRIES", 0)
    return replaced


@pytest.fixture
def one(server: Server, tmp_path: Path, offer: Offer, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A corpus of three files, of which a source has two, and a mirror all of them; the folder it belongs in."""
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "plain").write_bytes(b"plain")
    with gzip.GzipFile(copy / "packed.gz", "wb", compresslevel=1, mtime=7) as file:
        file.write(CONTENT)
    (copy / "made of several").write_bytes(b"made")
    urls = {"plain": server.url("/source/plain"), "packed.gz": server.url("/source/unpacked")}
    offer({path.name: replace(measure_file(path), url=urls.get(path.name)) for path in copy.iterdir()})
    for path in copy.iterdir():
        server.answers[f"/copy/one/{path.name.replace(' ', '%20')}"] = path.read_bytes()
    server.answers |= {"/source/plain": b"plain", "/source/unpacked": CONTENT}
    monkeypatch.setenv("SEQWISE_DATA", str(tmp_path / "corpora"))
    return tmp_path / "corpora" / "one"


def test_a_corpus_from_its_source(one: Path, corpora_command: Command, server: Server) -> None:
    ended = corpora_command("download", "one")
    assert ended.code == 0, ended.err
    assert ended.out.splitlines()[0] == f"one: 2 files downloaded to {one}; licence: CC0"
    assert ended.out.splitlines()[1].endswith(": made of several")
    assert gzip.decompress((one / "packed.gz").read_bytes()) == CONTENT
    assert {path.name for path in one.iterdir()} == {"plain", "packed.gz"}
    # Compressed by us, of other bytes than those in the table, and as good.
    assert "made of several is missing" in corpora_command("check", "one").out
    (one / "made of several").write_bytes(b"made")
    assert corpora_command("check", "one").out == "one: in order (3 files)\n"
    asked = len(server.asked)
    assert corpora_command("download", "one").out.startswith("one: 0 files downloaded")
    assert len(server.asked) == asked


def test_a_corpus_from_a_mirror(one: Path, corpora_command: Command, server: Server, tmp_path: Path) -> None:
    ended = corpora_command("download", "one", "--mirror", server.url("/copy/"), "--to", tmp_path / "elsewhere")
    assert ended.code == 0, ended.err
    for path in (tmp_path / "copy").iterdir():
        assert (tmp_path / "elsewhere" / "one" / path.name).read_bytes() == path.read_bytes()


def test_only_what_is_wrong_is_fetched(one: Path, corpora_command: Command, server: Server) -> None:
    assert corpora_command("download", "one", "--mirror", server.url("/copy")).code == 0
    (one / "plain").write_bytes(b"plaid")
    server.asked.clear()
    assert corpora_command("download", "one", "--mirror", server.url("/copy")).code == 0
    assert server.asked == ["/copy/one/plain"] and (one / "plain").read_bytes() == b"plain"


@pytest.mark.parametrize("content", [b"plaid", b"plain and more", b"pl", b"<html>sign in</html>"])
def test_wrong_contents_from_a_server_are_detected(
    one: Path, corpora_command: Command, server: Server, content: bytes
) -> None:
    one.mkdir(parents=True)
    (one / "plain").write_text("what was there before")
    server.answers["/source/plain"] = content
    assert "/source/plain is not the file of the catalogue" in corpora_command("download", "one").complaint
    assert (one / "plain").read_text() == "what was there before"
    assert not [path for path in one.iterdir() if path.name.startswith(".download")]
    server.answers["/source/plain"] = b"plain"
    assert corpora_command("download", "one").code == 0 and (one / "plain").read_bytes() == b"plain"


@pytest.mark.parametrize("status", [403, 404, 500])
def test_refusals_are_one_line(one: Path, corpora_command: Command, server: Server, status: int) -> None:
    server.answers["/source/plain"] = status
    assert str(status) in corpora_command("download", "one").complaint


def test_a_passing_failure_is_tried_again(
    one: Path, corpora_command: Command, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "RETRIES", 1)
    monkeypatch.setattr("time.sleep", lambda seconds: server.answers.update({"/source/plain": b"plain"}))
    server.answers["/source/plain"] = b"half"
    assert corpora_command("download", "one").code == 0 and (one / "plain").read_bytes() == b"plain"


def test_corpora_that_cannot_be_fetched_say_so(
    one: Path, corpora_command: Command, server: Server, offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "there is no corpus 'on'; did you mean 'one'?" in corpora_command("download", "on").complaint
    assert "404" in corpora_command("download", "one", "--mirror", server.url("/nowhere")).complaint
    offer({"plain": catalogue.File(5, hashlib.sha256(b"plain").hexdigest())})
    assert "give --mirror URL" in corpora_command("download", "one").complaint
    offer({"plain": catalogue.File(5, "00", url="file:///etc/passwd")})
    assert corpora_command("download", "one").complaint
    monkeypatch.delenv("SEQWISE_DATA")
    assert "give --to FOLDER" in corpora_command("download", "one").complaint


def test_what_is_compressed_in_a_file_is_compared_and_no_more_is_read(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "a.gz", "wb") as file:
        file.write(b"a" * 1000)
    wanted = measure_file(tmp_path / "a.gz")
    assert wanted.contents == catalogue.File(1000, hashlib.sha256(b"a" * 1000).hexdigest())
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


def test_a_corpus_is_made_of_trees(
    one: Path, corpora_command: Command, server: Server, tmp_path: Path, offer: Offer
) -> None:
    with gzip.open(tmp_path / "dev.tsv.gz", "wb") as file:
        file.write(SUPERTAGS.encode())
    offer({"dev.tsv.gz": replace(measure_file(tmp_path / "dev.tsv.gz"), trees=server.url("/dev.conllu"))})
    server.answers["/dev.conllu"] = TREES.replace("root", "dep").encode()
    assert "dev.conllu contains other trees" in corpora_command("download", "one").complaint
    server.answers["/dev.conllu"] = b"<html>moved</html>"
    complaint = corpora_command("download", "one").complaint
    assert "/dev.conllu contains no trees: line 1: 1 column where 10 were expected; check the source" in complaint
    assert list(one.iterdir()) == []
    server.answers["/dev.conllu"] = TREES.encode()
    assert corpora_command("download", "one").out.startswith("one: 1 files downloaded")
    assert gzip.decompress((one / "dev.tsv.gz").read_bytes()).decode() == SUPERTAGS
    assert [path.name for path in one.iterdir()] == ["dev.tsv.gz"]
    assert corpora_command("check", "one").out == "one: in order (1 files)\n"


def test_published_files_are_pinned() -> None:
    for corpus in corpora().values():
        for url in (url for file in corpus.files.values() for url in (file.url, file.trees) if url):
            commit = url.split("/")[5]
            assert len(commit) == 40 and any(commit in source for source in corpus.sources), url
