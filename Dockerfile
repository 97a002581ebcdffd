# onnxfold as a command: docker build -t onnxfold . && docker run --rm -v "$PWD:/work" onnxfold fold in.onnx out.onnx
FROM python:3.12-slim
# onnxruntime and scikit-learn bring their own libraries; nothing of Debian is added.
COPY . /src
RUN python -m pip install --no-cache-dir --disable-pip-version-check /src
# Inputs that take long to make are kept between folds of one container.
ENV XDG_CACHE_HOME=/tmp/cache
USER 65534:65534
WORKDIR /work
ENTRYPOINT ["onnxfold"]
CMD ["--help"]
