# The server (docs/server.md): one model over HTTP, a class mix for each site.
#
#   docker build -t tailshift .
#   docker run -p 8000:8000 -e TAILSHIFT_TOKEN=SECRET \
#     -v ./model.onnx:/model.onnx:ro -v tailshift-state:/state tailshift
FROM python:3.12-slim
WORKDIR /build
COPY . .
RUN pip install --no-cache-dir --constraint constraints.txt ".[serve]" \
    && rm -rf /build \
    && useradd --create-home tailshift \
    && install -d -o tailshift /state
USER tailshift
WORKDIR /state
VOLUME /state
EXPOSE 8000
# Other machines reach it, so it asks for TAILSHIFT_TOKEN and does not start without.
ENTRYPOINT ["tailshift", "serve"]
CMD ["/model.onnx", "--host", "0.0.0.0", "--port", "8000", "--state", "/state/sites.sqlite"]
