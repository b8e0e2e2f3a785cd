# The commands in a container, with the versions of constraints.txt:
#
#     docker build --tag disco .
#     docker run --rm --volume "$PWD/runs:/runs" disco \
#         -m launch.evaluate --rule=three_families --suite=catch/8x8 --workdir=/runs/catch
#     docker run --rm --volume "$PWD/runs:/runs" --publish 6006:6006 disco \
#         -m tensorboard.main --logdir=/runs --bind_all
#
# For NVIDIA GPUs: `docker build --build-arg EXTRAS=suites,cuda …` and `docker run --gpus=all …`.
# The user in the container has the id 1000, and writes in /runs; `--build-arg USER_ID=$(id -u)`
# makes it yours.
#
# It was never built by the project, whose machines have no Docker daemon.

ARG PYTHON=3.11
FROM python:${PYTHON}-slim-bookworm

# ProcGen's engine needs Qt 5.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libqt5gui5 \
    && rm --recursive --force /var/lib/apt/lists/*

# Extras beside those of the commands, by commas.
ARG EXTRAS=suites
WORKDIR /disco
COPY . .
RUN python -m pip install --no-cache-dir --constraint constraints.txt \
        --editable ".[platform,hub,wandb${EXTRAS:+,$EXTRAS}]"

ARG USER_ID=1000
RUN useradd --create-home --uid ${USER_ID} disco && install --directory --owner=disco /runs
USER disco
VOLUME /runs

ENTRYPOINT ["python"]
CMD ["-m", "launch"]
