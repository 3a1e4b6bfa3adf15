"""Local server of the explorer."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable
from typing import Any

from seqwise.errors import InputError, warn
from seqwise.pages.explorer.chain_page import ChainPage
from seqwise.pages.explorer.search_page import SearchPage
from seqwise.pages.explorer.stream_page import StreamPage
from seqwise.pages.explorer.streams import can_stream
from seqwise.pages.explorer.suggestions import Suggestions
from seqwise.runs.run import Run

PORT = 8421
"""Default port of the explorer."""

LIVE = "/live"
"""Path of the live lines of a run that can stream."""


def require_nicegui() -> None:
    """Raise an InputError if NiceGUI is not installed."""
    try:
        import nicegui  # noqa: F401
    except ImportError as error:
        raise InputError("the explorer needs NiceGUI", hint="pip install 'seqwise[explore]'") from error


def page_of(run: Run[Any, Any], name: str) -> Callable[[], object]:
    """Return a function that makes the page of a run for a new visitor; the requested path decides which one."""
    if run.codec.purpose != "predict":
        return lambda: ChainPage(run, name)
    suggestions, streams = Suggestions(run), can_stream(run)

    def page() -> object:
        from nicegui import ui

        request = ui.context.client.request
        if streams and request is not None and request.url.path == LIVE:
            return StreamPage(run, name, suggestions)
        return SearchPage(run, name, suggestions, live=LIVE if streams else None)

    return page


def is_loopback(host: str) -> bool:
    """Whether a host name or address can be reached from this machine only.

    Example:
        >>> is_loopback("localhost"), is_loopback("127.0.0.1"), is_loopback("0.0.0.0")
        (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def free_port(host: str, port: int) -> int:
    """Check that the port is free; for 0 return a free one."""
    if not 0 <= port < 2**16:
        raise InputError(f"--port must be from 0 to {2**16 - 1}, got {port}")
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with socket.create_server((host, port), family=family) as taken:
            return int(taken.getsockname()[1])
    except OSError as error:
        problem = f"cannot listen on {host}, port {port} ({error.strerror or error})"
        raise InputError(problem, hint="give another --port, or 0 for any free one") from error


def serve(run: Run[Any, Any], name: str, *, host: str = "127.0.0.1", port: int = PORT) -> None:
    """Serve the page of a run until it is interrupted.

    Args:
        run: the run to explore.
        name: its name on the page.
        host: address to listen on. On a loopback address, requests for other host names are refused, so that no
            web page can reach the server through the browser.
        port: from 1 to 65535, or 0 for any free one.

    Raises:
        InputError: NiceGUI is missing, or the port cannot be used.
    """
    require_nicegui()
    port = free_port(host, port)
    from nicegui import app, ui
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    if is_loopback(host):
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=["localhost", "127.0.0.1", "[::1]"])
    else:
        warn(f"anyone who can reach {host}, port {port}, can use the explorer")
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    app.on_startup(lambda: _announce(host, port, address))
    ui.run(
        page_of(run, name), host=host, port=port, title="seqwise explore", dark=None, language="en-US",
        tailwind=False, reload=False, show=False, show_welcome_message=False,
    )  # fmt: skip


async def _announce(host: str, port: int, address: str) -> None:
    """Print the address once the server accepts connections."""
    while True:
        try:
            _, writer = await asyncio.open_connection(host, port)
        except OSError:
            await asyncio.sleep(0.05)
        else:
            writer.close()
            break
    print(f"the explorer is at {address}; Ctrl-C ends it", flush=True)
