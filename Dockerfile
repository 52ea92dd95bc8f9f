# Ray's image at the pinned versions with raycase in it, for kuberay.yaml (and cluster.yaml, to start nodes sooner):
#     docker build --push --tag registry.example.com/raycase:2.60.0-py311-gpu .
FROM rayproject/ray:2.60.0-py311-gpu
# Made by the image's user, which pip needs to write here; WORKDIR alone would make it root's.
RUN mkdir /home/ray/raycase
WORKDIR /home/ray/raycase
COPY --chown=ray:users pyproject.toml README.md LICENSE constraints.txt ./
COPY --chown=ray:users raycase raycase
COPY --chown=ray:users jobs jobs
RUN pip install --no-cache-dir -c constraints.txt -e '.[gpu,lora,minilm,search]'
