"""How the scheduler's account of a request is shown to people."""

from __future__ import annotations

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from halcyon.wire.inference import Account


def account_lines(account: Account) -> list[tuple[str, str]]:
    """The account as label and sentence, one line for each scheduler's part."""
    usage, replicas = account.usage, account.eligible_replicas
    choice = f"{replicas} replica{'' if replicas == 1 else 's'} could take it" if replicas else ""
    tries = f"attempt {account.attempts}" if account.attempts > 1 else ""
    hedged = "hedged" if account.hedged else ""
    behind = f"{account.queue_depth} left waiting" if account.queue_depth else ""
    return [
        ("served by", _joined(f"{account.model}@{account.version}", account.replica_id, choice, tries, hedged)),
        ("batch", _joined(f"{account.batch_size} together", account.batch_reason, behind)),
        ("time", _times(account)),
        ("tokens", _joined(f"{usage.prompt_tokens} in", f"{usage.completion_tokens} out", _rate(account), _cached(account))),
        ("request", account.request_id),
    ]


def print_account(account: Account, console: Console) -> None:
    """A panel where the console is a terminal, label and value lines otherwise."""
    if not console.is_terminal:
        console.print(Text("\n".join(f"{label:<10}{value}" for label, value in account_lines(account))), soft_wrap=True)
        return
    table = Table.grid(padding=(0, 2, 0, 0))
    for label, value in account_lines(account):
        table.add_row(Text(label, style="dim"), Text(value))
    console.print(Panel(table, title="how it was served", title_align="left", border_style="dim", expand=False))


def _times(account: Account) -> str:
    timings = account.timings
    return _joined(
        _ms(timings.queue_ms, "queued"),
        _ms(timings.ttft_ms, "to the first token"),
        _ms(timings.tpot_ms, "a token"),
        _ms(timings.total_ms, "in all"),
    )


def _ms(value: float | None, what: str) -> str:
    return "" if value is None else f"{value:,.1f} ms {what}"


def _rate(account: Account) -> str:
    total_ms = account.timings.total_ms
    return f"{account.usage.completion_tokens * 1000 / total_ms:,.1f}/s" if total_ms else ""


def _cached(account: Account) -> str:
    return f"{account.usage.cached_tokens} of the prompt cached" if account.usage.cached_tokens else ""


def _joined(*parts: str) -> str:
    return " · ".join(part for part in parts if part)
