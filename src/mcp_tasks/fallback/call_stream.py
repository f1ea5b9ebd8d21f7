"""The stream of one call, on which its client is asked."""

from __future__ import annotations

from mcp_tasks.adapters.era import RequestContext
from mcp_tasks.adapters.exchange import exchange_of, is_pipe
from mcp_tasks.core.inputs import InputRequest
from mcp_tasks.tools.client_stream import ClientStream


class CallStream(ClientStream):
    """The stream of one call.

    Attributes:
        connection: Which connection it is of, told by what it is.
        is_lost: Whether something that was sent on it went wrong. It would again.
    """

    def __init__(self, ctx: RequestContext) -> None:
        super().__init__(ctx.session, ctx.request_id)
        self.connection: object = ctx.session.client_params
        self.is_lost: bool = False
        self._is_pipe = is_pipe(ctx)
        self._exchange = exchange_of(ctx)
        self._was_cut_off = False
        self._is_left = False

    @property
    def is_open(self) -> bool:
        """Whether its client has it before it, as far as is known. A pipe stays open after a call; a client may close
        its dialogs with the call all the same."""
        if self._is_pipe:
            return not self._is_left
        return self._session.can_send_request and not self.is_cut_off

    @property
    def is_cut_off(self) -> bool:
        """Whether the client left before the call was answered, so that it may have read nothing."""
        return self._was_cut_off or (self._session.can_send_request and self._is_over())

    def takes(self, question: InputRequest) -> bool:
        """Whether the client can be asked this here."""
        return not self.is_lost and not self.is_cut_off and super().takes(question)

    def leave(self) -> None:
        """Its call is about to be answered: after that, a stream that is over was not cut off."""
        self._was_cut_off = self._is_over()
        self._is_left = True

    def _is_over(self) -> bool:
        # A client that can come back for the rest of a stream is taken to do so.
        return self._exchange is not None and not self._exchange.can_resume and self._exchange.over.is_set()
