"""Where the shop's views are, and the admin."""

from django.contrib import admin
from django.contrib.staticfiles.views import serve
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from . import views

urlpatterns = [
    path("admin/", admin.site.urls),
    # Files of the admin, for any server and DEBUG. Slow, which is good enough here; real projects
    # let their web server do it, or WhiteNoise.
    path("static/<path:path>", serve, {"insecure": True}),
    path("", views.index),
    # Exempt, so that curl can buy. None of these views asks who is logged in, so nobody can be
    # tricked.
    path("products/<int:pk>/buy/", csrf_exempt(views.buy)),
    path("products/<int:pk>/orders/", csrf_exempt(views.order)),
    path("products/<int:pk>/labels.csv", views.labels),
    path("products/<int:pk>/reorder/", csrf_exempt(views.Reorder.as_view())),
    path("orders.csv", views.orders),
    path("catalogue/", csrf_exempt(views.Catalogue.as_view())),
    path("news/<str:event>/", csrf_exempt(views.news)),
]
