"""Pictures of the demo's Airflow, taken by a headless Chromium through its own debugging protocol.

python docs/screenshots.py --home .pipeline/airflow --port 18080 --dag release__demo-chat --run RUN_ID --out .readme
"""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import aiohttp

from llm_pipeline.base.entry import ArgumentParser, entry_point
from llm_pipeline.base.errors import ConfigError, Transient
from llm_pipeline.base.logging import get_logger
from llm_pipeline.demo.local_airflow import USERNAME, AirflowAccess, read_access

log = get_logger(__name__)

_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--remote-debugging-port=0",
)  # fmt: skip
_LOOK_SECONDS = 0.25
_CLICK_SECONDS = 0.7
_DRAWING_SECONDS = 2.5
_MARGIN_PIXELS = 32.0
_CLOSED_GRAPH = ("Show Graph (Press g)", "Collapse Details Panel", "Fit View")


@dataclass(frozen=True)
class Picture:
    """One page to photograph.

    Attributes:
        file: Name of the PNG.
        path: Path of the page below Airflow's URL.
        text: Text that the page shows when it is ready.
        frame: The text is inside the page's frame.
        clicks: Labels of buttons to click, in order, once the page is ready.
        around: CSS selector of what the picture shows, half as large again; empty for the whole page.
        graph_of: The DAG whose graph goes from top to bottom, which a browser keeps for each DAG; empty for none.
    """

    file: str
    path: str
    text: str
    frame: bool = False
    clicks: tuple[str, ...] = ()
    around: str = ""
    graph_of: str = ""


class Browser:
    """A headless Chromium with one page, as an asynchronous context manager.

    Raises:
        ConfigError: There is no Chromium.
        Transient: A page does not become ready in time.
    """

    def __init__(self, *, width: int = 1800, height: int = 900, timeout_seconds: float = 60.0) -> None:
        self._size = (width, height)
        self._timeout = timeout_seconds
        self._number = 0

    async def __aenter__(self) -> Self:
        program = shutil.which("chromium") or shutil.which("google-chrome")
        if program is None:
            raise ConfigError("no chromium is installed", hint="apt-get install chromium")
        self._profile = Path(tempfile.mkdtemp(prefix="screenshots-"))
        size = f"--window-size={self._size[0]},{self._size[1]}"
        self._process = await asyncio.create_subprocess_exec(
            program, *_FLAGS, size, f"--user-data-dir={self._profile}", "about:blank",
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        self._session = aiohttp.ClientSession()
        try:
            await self._attach()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()
        self._process.terminate()
        await self._process.wait()
        shutil.rmtree(self._profile, ignore_errors=True)

    async def open(self, url: str) -> None:
        """Navigate to a page; returns before it is loaded."""
        await self.call("Page.navigate", url=url)

    async def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = await self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        return answer["result"].get("value")

    async def wait_for(self, script: str, what: str) -> None:
        """Wait until a JavaScript expression is true."""
        deadline = asyncio.get_running_loop().time() + self._timeout
        while not await self.evaluate(script):
            if asyncio.get_running_loop().time() > deadline:
                raise Transient(f"the page does not show {what}", where=str(await self.evaluate("location.href")))
            await asyncio.sleep(_LOOK_SECONDS)

    async def click(self, label: str) -> None:
        """Click the button of that label."""
        button = f"document.querySelector('button[aria-label={json.dumps(label)}]')"
        await self.wait_for(f"!!{button}", f"the button {label!r}")
        await self.evaluate(f"{button}.click()")
        await asyncio.sleep(_CLICK_SECONDS)

    async def picture(self, around: str = "") -> bytes:
        """A PNG of the page, or of the part that holds all elements of a CSS selector."""
        clip = {"clip": await self._box(around)} if around else {}
        answer = await self.call("Page.captureScreenshot", format="png", **clip)
        return base64.b64decode(answer["data"])

    async def _box(self, selector: str) -> dict[str, float]:
        boxes = await self.evaluate(
            f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.getBoundingClientRect().toJSON())"
        )
        left, top = (min(box[side] for box in boxes) - _MARGIN_PIXELS for side in ("left", "top"))
        right, bottom = (max(box[side] for box in boxes) + _MARGIN_PIXELS for side in ("right", "bottom"))
        return {"x": left, "y": top, "width": right - left, "height": bottom - top, "scale": 1.5}

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the debugging protocol."""
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": parameters})
        async for message in self._socket:
            answer = json.loads(message.data)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise Transient(f"the browser refused {method}: {answer['error']['message']}")
                return dict(answer["result"])
        raise Transient(f"the browser closed its connection during {method}")

    async def _attach(self) -> None:
        port = await self._port()
        async with self._session.get(f"http://127.0.0.1:{port}/json/list") as answer:
            pages = [page for page in await answer.json() if page["type"] == "page"]
        self._socket = await self._session.ws_connect(pages[0]["webSocketDebuggerUrl"], max_msg_size=0)
        width, height = self._size
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )

    async def _port(self) -> int:
        """The port that Chromium chose, which it writes to a file once it listens."""
        deadline = asyncio.get_running_loop().time() + self._timeout
        while not (port := _written_port(self._profile)):
            if asyncio.get_running_loop().time() > deadline or self._process.returncode is not None:
                raise Transient("the browser does not start")
            await asyncio.sleep(_LOOK_SECONDS)
        return port


def _written_port(profile: Path) -> int | None:
    written = profile / "DevToolsActivePort"
    numbers = written.read_text().split() if written.exists() else []
    return int(numbers[0]) if numbers else None


async def take(access: AirflowAccess, pictures: Sequence[Picture]) -> dict[str, bytes]:
    """Log in to Airflow and photograph pages; the PNGs by file name.

    Raises:
        ConfigError: There is no Chromium.
        Transient: A page does not become ready in time.
    """
    taken = {}
    async with Browser() as browser:
        await _log_in(browser, access)
        for picture in pictures:
            if picture.graph_of:
                downwards = f"localStorage.setItem('direction-{picture.graph_of}', JSON.stringify('DOWN'))"
                await browser.evaluate(downwards)
            await browser.open(access.url + picture.path)
            await browser.wait_for(_shows(picture), repr(picture.text))
            for label in picture.clicks:
                await browser.click(label)
            await asyncio.sleep(_DRAWING_SECONDS)
            taken[picture.file] = await browser.picture(picture.around)
            log.info("picture taken", file=picture.file)
    return taken


def release_pictures(dag_id: str, run_id: str) -> list[Picture]:
    """The pages of a release's run that the documentation shows."""
    run = f"/dags/{dag_id}/runs/{quote(run_id, safe='')}"
    return [
        Picture("dag.png", run, "Preparation", clicks=_CLOSED_GRAPH, around=".react-flow__node", graph_of=dag_id),
        Picture("approval.png", f"{run}/tasks/approve/required_actions", "Promote"),
        Picture("report.png", f"{run}/plugin/release-report", "", frame=True),
    ]


async def _log_in(browser: Browser, access: AirflowAccess) -> None:
    await browser.open(f"{access.url}/auth/login")
    await browser.wait_for("!!document.querySelector('input[name=\"password\"]')", "the login form")
    for name, value in (("username", USERNAME), ("password", access.password)):
        await browser.evaluate(f"document.querySelector('input[name=\"{name}\"]').focus()")
        await browser.call("Input.insertText", text=value)
    await browser.evaluate("document.querySelector('button[type=\"submit\"]').click()")
    await browser.wait_for("!location.pathname.includes('login')", "Airflow after the login")


def _shows(picture: Picture) -> str:
    if picture.frame:
        body = "document.querySelector('iframe')?.contentDocument?.body"
        return f"({body}?.innerText ?? '').includes({json.dumps(picture.text)}) && !!{body}?.innerText"
    return f"(document.body?.innerText ?? '').includes({json.dumps(picture.text)})"


@entry_point
def main(arguments: Sequence[str] | None = None) -> int:
    """Photograph a run of a release's DAG; 0 when all pictures were taken."""
    parser = ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--home", type=Path, required=True, help="Airflow's directory")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--dag", required=True)
    parser.add_argument("--run", required=True, help="run id, as the demo shows it")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    access = read_access(options.home, options.port)
    taken = asyncio.run(take(access, release_pictures(options.dag, options.run)))
    options.out.mkdir(parents=True, exist_ok=True)
    for name, png in taken.items():
        (options.out / name).write_bytes(png)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
