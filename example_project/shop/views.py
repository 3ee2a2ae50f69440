"""The views of the shop. Views that change a stock take the same lock as the workers."""

from __future__ import annotations

import json

from django.core.exceptions import BadRequest
from django.core.handlers.asgi import ASGIRequest
from django.db.transaction import non_atomic_requests
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.shortcuts import get_object_or_404, render
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.http import require_GET, require_POST

from django_redislock import current_lease
from django_redislock.views import idempotent_view, lock_view

from . import catalogue, outside, receipts, services, streams
from .models import LockIncident, Order, Product

MAX_SECONDS = 60.0


@require_GET
def index(request: HttpRequest) -> HttpResponse:
    """Show the stock, the orders, and what happened to locks."""
    context = {
        "products": Product.objects.order_by("name"),
        "orders": Order.objects.select_related("product").order_by("-pk")[:10],
        "incidents": LockIncident.objects.order_by("-pk")[:10],
    }
    return render(request, "shop/index.html", context)


@require_POST
@non_atomic_requests  # or a database transaction would stay open while the customer pays
@lock_view("stock:{pk}")
def buy(request: HttpRequest, pk: int) -> HttpResponse:
    """Handle a form. Another customer who buys the same at the same moment is told so at once."""
    product = get_object_or_404(Product, pk=pk)
    patience = seconds(request)
    order = services.sell_under(
        current_lease(), pk, "the web", lambda _: outside.wait(f"paid-{pk}", patience)
    )
    status = 410 if order is None else 201
    return render(request, "shop/bought.html", {"product": product, "order": order}, status=status)


@require_POST
# Outermost: it keeps the response of the locked view. Nobody logs in here, and no response is
# secret, so all programs share their keys.
@idempotent_view(required=True, scope=lambda _request: "")
@lock_view("stock:{pk}", wait=10)
def order(request: HttpRequest, pk: int) -> HttpResponse:
    """Let a program order a unit. It may repeat a request that got no answer."""
    customer = customer_of(request)
    receipt = receipts.next_number()
    try:
        order = services.order_under(current_lease(), pk, customer)
    except Product.DoesNotExist:
        raise Http404 from None
    if order is None:
        return JsonResponse({"detail": "Sold out."}, status=410)
    return JsonResponse({"order": order.pk, "receipt": receipt, "customer": customer}, status=201)


@require_GET
@lock_view("stock:{pk}", wait=10)
def labels(request: HttpRequest, pk: int) -> StreamingHttpResponse:
    """Stream a label for each unit. Nobody sells units until the last label is sent."""
    product = get_object_or_404(Product, pk=pk)
    parts = streams.labels(product)
    if isinstance(request, ASGIRequest):
        parts = streams.for_asgi(parts)
    return StreamingHttpResponse(parts, content_type="text/csv")


@require_GET
@lock_view("export")  # a semaphore, as the settings say: three at a time
def orders(_request: HttpRequest) -> StreamingHttpResponse:
    """Show all orders, for the accounts: a long answer. The database can make three at a time."""
    found = Order.objects.order_by("pk").values_list("pk", "product__name", "worker")
    lines = [f"{pk},{name},{worker}\n" for pk, name, worker in found]
    return StreamingHttpResponse(iter(["order,product,by\n", *lines]), content_type="text/csv")


@method_decorator(non_atomic_requests, name="dispatch")
class Catalogue(View):
    """Show the catalogue. A new edition waits for readers, and readers wait for it."""

    def get(self, _request: HttpRequest) -> HttpResponse:
        return HttpResponse("\n".join(catalogue.pages()), content_type="text/plain")

    def post(self, _request: HttpRequest) -> HttpResponse:
        return JsonResponse({"pages": catalogue.rebuild()}, status=201)


@method_decorator(non_atomic_requests, name="dispatch")  # Django has no other kind for coroutines
@lock_view("reorder:{pk}")
class Reorder(View):
    """Ask the supplier for more units, one request at a time, so that nothing comes twice."""

    async def post(self, request: HttpRequest, pk: int) -> HttpResponse:
        if not await Product.objects.filter(pk=pk).aexists():
            raise Http404
        await outside.await_(f"supplied-{pk}", seconds(request))
        return JsonResponse({"fencing_token": current_lease().fencing_token}, status=202)


@require_POST
@non_atomic_requests
def news(_request: HttpRequest, event: str) -> HttpResponse:
    """Let the payment service or the supplier report that it is done."""
    outside.report(event)
    return HttpResponse(status=204)


def seconds(request: HttpRequest) -> float:
    """Return the longest time to wait for an external service."""
    try:
        return min(float(request.POST.get("seconds", 0)), MAX_SECONDS)
    except ValueError:
        raise BadRequest("seconds must be a number") from None


def customer_of(request: HttpRequest) -> str:
    """Return the customer that the JSON names."""
    try:
        return str(json.loads(request.body)["customer"])[:100]
    except (ValueError, TypeError, LookupError):
        raise BadRequest('the body must be like {"customer": "Ann"}') from None
