# An image that serves and works: the library, not your agents. Build on it: FROM turnwise, COPY shop/ shop/,
# CMD ["serve", "shop.agents:agents", "--host", "0.0.0.0"]. One that works and serves nothing adds HEALTHCHECK NONE.
FROM python:3.13-slim AS build
COPY . /src
RUN pip wheel --no-cache-dir --wheel-dir /wheels "/src[cli,models,postgres,service]"

FROM python:3.13-slim
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir --no-index --find-links /wheels "turnwise[cli,models,postgres,service]" && rm -r /wheels
RUN useradd --uid 10001 --create-home turnwise && install --directory --owner turnwise /data
USER turnwise
WORKDIR /home/turnwise
COPY examples/service.py examples/service.py
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8080/healthz', timeout=4)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["turnwise"]
CMD ["serve", "examples.service:agents", "--host", "0.0.0.0", "--create"]
