# slim_rl with what `make repro` needs, on Debian's Python. Built nowhere yet: read it as a recipe.
#     docker build --tag slim-rl . && docker run --rm --volume "$PWD/study:/study" slim-rl run demo
FROM python:3.11-slim-bookworm
RUN apt-get update -qq && apt-get install -yqq --no-install-recommends git make bubblewrap && rm -rf /var/lib/apt/lists/*
WORKDIR /slim_rl
COPY requirements.txt pyproject.toml ./
RUN pip install --no-cache-dir --requirement requirements.txt
COPY . .
RUN pip install --no-cache-dir --no-deps --no-build-isolation .
WORKDIR /study
ENTRYPOINT ["slim-rl"]
