/* Keeps the live part of the tour's page up to date, and tells what a button has done. */
"use strict";
{
    const live = document.getElementById("live");
    const wanted = document.getElementById("refresh");
    const said = document.getElementById("said");

    async function ask(address, options) {
        const answer = await fetch(address, options);
        if (!answer.ok) {
            throw new Error(answer.status);
        }
        return answer.text();
    }

    async function refresh() {
        try {
            live.innerHTML = await ask("live/");
            live.classList.remove("old");
        } catch {
            live.classList.add("old");
        }
    }

    async function everySecond() {
        if (wanted.checked && !document.hidden) {
            await refresh();
        }
        setTimeout(everySecond, 1000);
    }

    document.addEventListener("submit", async (event) => {
        event.preventDefault();
        const form = event.target;
        said.textContent = "";
        try {
            said.textContent = await ask(form.action, {method: "POST", body: new FormData(form)});
        } catch {
            said.textContent = "That did not work. Is the tour still running?";
        }
        refresh();
    });
    everySecond();
}
