# docker build -t jaxppo .                          CPU
# docker build -t jaxppo --build-arg EXTRA=cuda .   NVIDIA GPUs: docker run --gpus all
# docker run -v "$PWD/outputs:/runs/outputs" jaxppo ff_ppo env=cartpole
FROM python:3.11-slim
ARG EXTRA=export
RUN pip install --no-cache-dir uv
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY configs configs
COPY hydra_plugins hydra_plugins
COPY jaxppo jaxppo
RUN uv pip install --system --no-cache -c constraints.txt ".[$EXTRA]"
WORKDIR /runs
ENTRYPOINT ["jaxppo"]
CMD ["--help"]
