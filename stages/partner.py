"""Is the partner there? Tried before a stage that needs it loads anything heavy; a scripted one always is."""

from slim_rl.config import load_config
from slim_rl.errors import told_in_a_sentence


def main() -> None:
    config = load_config()
    if not config.needs_service:
        return
    from slim_rl.players.chat import check_service  # which a scripted partner does not wait for

    check_service(config.partner)


if __name__ == "__main__":
    with told_in_a_sentence():
        main()
