"""The command line of deploy/local."""

from __future__ import annotations

import argparse
import json
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any

from .kafka_jars import cache_dir
from .local_services import LocalServices
from .processes import ServiceError
from .services import install_jars

_INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> int:
    """Run one command; return the exit code: 0 done (status: all runs), 1 error (status: not all runs), 2 usage."""
    options = _parser().parse_args(arguments)
    services = LocalServices(options.dir.absolute())
    try:
        if options.command == "install":
            print(install_jars())
            return 0
        if options.command == "run":
            return _run(services, options)
        if options.command == "up":
            report = services.up(nodes=options.nodes, kafka_port=options.kafka_port, redis_port=options.redis_port)
        elif options.command == "down":
            report = services.down(wipe=options.wipe)
        else:
            report = services.status()
    except ServiceError as error:
        print(f"deploy/local: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED
    print(json.dumps(report) if options.json else _text(report))
    if options.command == "up" and not options.json:
        print(f"export FENCEPOST_URL='{report['url']}'")
    return 0 if report["running"] or options.command == "down" else 1


def _run(services: LocalServices, options: argparse.Namespace) -> int:
    """Run a command with the services up; stop afterwards those that did not run before."""
    report = services.up(nodes=options.nodes, kafka_port=options.kafka_port, redis_port=options.redis_port)
    values = {
        "{kafka}": report["kafka"]["bootstrap"],
        "{redis}": report["redis"]["url"],
        "{unique}": secrets.token_hex(4),
    }
    command = []
    for word in options.argv[1:] if options.argv[:1] == ["--"] else options.argv:
        for name, value in values.items():
            word = word.replace(name, value)  # noqa: PLW2901
        command.append(word)
    try:
        return subprocess.run(command, check=False).returncode
    except OSError as error:
        raise ServiceError(f"cannot run {command[0]}: {error}") from error
    finally:
        if report["started"]:
            services.down(only=report["started"])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="deploy/local", description="Kafka and Redis on this machine, without Docker."
    )
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--dir", type=Path, default=cache_dir() / "local", help="state, data, logs (%(default)s)")
    common.add_argument("--json", action="store_true", help="print JSON")
    starting = argparse.ArgumentParser(add_help=False)
    starting.add_argument("--nodes", type=int, choices=(1, 3), help="brokers (1)")
    starting.add_argument("--kafka-port", type=int, help="of the first broker; a free one when not given")
    starting.add_argument("--redis-port", type=int, help="a free one when not given")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("up", parents=[common, starting], help="start what does not run")
    down = commands.add_parser("down", parents=[common], help="stop; data stays")
    down.add_argument("--wipe", action="store_true", help="delete data and logs")
    commands.add_parser("status", parents=[common], help="addresses and process ids; exit code 1 unless all runs")
    commands.add_parser("install", parents=[common], help="download Kafka's jars only")
    run = commands.add_parser("run", parents=[common, starting], help="run a command with the services up")
    run.add_argument("argv", nargs=argparse.REMAINDER, help="-- COMMAND; {kafka}, {redis}, {unique} are filled in")
    return parser


def _text(report: dict[str, Any]) -> str:
    lines = ["running" if report["running"] else "not running", f"directory  {report['directory']}"]
    if report["running"]:
        lines.append(f"url        {report['url']}")
    for name in ("kafka", "redis"):
        if (one := report.get(name)) is not None:
            address = one.get("bootstrap") or one.get("url")
            lines.append(f"{name}      {address}  pids {', '.join(map(str, one['pids'])) or 'none'}")
            lines += [f"  log      {log}" for log in one["logs"]]
    return "\n".join(lines)
