"""The shop's addresses while `manage.py tour` runs: nowhere else may a button kill a process."""

from django.urls import include, path

from . import views

urlpatterns = [
    path("tour/", views.page),
    path("tour/live/", views.live),
    path("tour/press/<str:button>/", views.press),
    path("", include("shop.urls")),
]
