"""The HTTP server: an ASGI app over an engine, and what serves it.

    async with open_engine(model="shapes") as engine:
        await serve(create_app(engine))

Nothing here knows of workers or rings: it is a client of `sidestream.engine`, and needs the extra
``sidestream[server]``.
"""

from .app import create_app as create_app
from .config import ServerConfig as ServerConfig
from .service import Service as Service
from .serving import serve as serve
