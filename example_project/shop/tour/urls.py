"""The shop's addresses while `manage.py tour` runs. Nowhere else may a button kill a process."""

from django.urls import include, path
from django.views.generic import RedirectView

from . import views

urlpatterns = [
    path("", RedirectView.as_view(url="/tour/")),  # for typed addresses, and from the admin
    path("tour/", views.page),
    path("tour/live/", views.live),
    path("tour/press/<str:button>/", views.press),
    path("", include("shop.urls")),
]
