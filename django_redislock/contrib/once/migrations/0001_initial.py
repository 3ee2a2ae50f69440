from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    operations = [
        migrations.CreateModel(
            name="Record",
            fields=[
                ("id", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=512, verbose_name="name")),
                ("label", models.CharField(max_length=255, verbose_name="label")),
                ("token", models.CharField(max_length=32)),
                ("done", models.BooleanField(default=False, verbose_name="done")),
                ("at", models.DateTimeField(db_index=True, verbose_name="changed at")),
                ("steps", models.JSONField(default=dict)),
                ("value", models.BinaryField()),
            ],
            options={
                "verbose_name": "record",
                "verbose_name_plural": "records",
                "ordering": ("-at",),
                "default_permissions": ("view",),
            },
        ),
    ]
