"""`python -m disco`: the version, the rules of the zoo, and where the commands are."""

import importlib.util

import disco


def main() -> None:
    """Print them."""
    print(f"disco {disco.__version__}: reinforcement-learning update rules as losses.\n")
    print(f"Rules, for disco.load(name): {', '.join(disco.zoo())}.")
    if importlib.util.find_spec("launch") and importlib.util.find_spec("haiku"):
        print("Commands, to discover and evaluate rules: python -m launch.")
    else:
        print("Commands need a checkout: pip install --editable '.[platform]' in its folder.")


if __name__ == "__main__":
    main()
