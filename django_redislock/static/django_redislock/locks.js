/* Keeps a page up to date: fetches it again, and makes each element with an id and the attribute
   data-redislock-live, and the admin's list, like the answer. Elements that both have stay, with
   their focus, their folding and the listeners of other scripts. Waits while something is selected,
   and while the page is hidden. refresh.html has the choice of the interval.

   On the page that says that Redis does not answer, tries again until it does. */
"use strict";
{
    const KEPT = "django-redislock.refresh";
    const REST = 5;  // a page is fetched again after so many times what the last answer took
    const TRY_AGAIN = 5000;
    const LIST_PARTS = [
        "#changelist-search .quiet",
        "#changelist-form [name=csrfmiddlewaretoken]",
        "#changelist-form .action-counter",
        "#changelist-form .all",
        "#changelist-form .question",
        "#changelist-form .clear",
        ".paginator",
    ];
    const bound = new WeakSet();
    let timer = null;
    let asked = 0;
    let took = 0;
    let pressed = false;

    function show(id, shown) {
        document.getElementById(id).hidden = !shown;
    }

    function live(page) {
        return [...page.querySelectorAll("[data-redislock-live]")];
    }

    /* Returns what a refresh may change under the reader's hand. */
    function touchable() {
        const form = document.getElementById("changelist-form");
        return form ? [form] : live(document);
    }

    /* Says whether rows are ticked, or text is selected. */
    function selected() {
        const text = getSelection();
        return document.querySelector("input.action-select:checked") !== null
            || !text.isCollapsed
            && touchable().some((part) => text.getRangeAt(0).intersectsNode(part));
    }

    /* Makes a node like another one. Only the reader opens and closes details. */
    function morph(old, now) {
        if (old.isEqualNode(now)) {
            return;
        }
        if (old.nodeName !== now.nodeName || old.nodeType !== Node.ELEMENT_NODE) {
            old.replaceWith(now);
            return;
        }
        for (const name of [...old.getAttributeNames(), ...now.getAttributeNames()]) {
            if (name !== "open" && !now.hasAttribute(name)) {
                old.removeAttribute(name);
            } else if (name !== "open") {
                old.setAttribute(name, now.getAttribute(name));
            }
        }
        const before = [...old.childNodes], after = [...now.childNodes];
        before.slice(after.length).forEach((node) => node.remove());
        after.forEach((node, index) => {
            index < before.length ? morph(before[index], node) : old.append(node);
        });
    }

    /* Gives a parent these children. Children that it already has are found by their names. */
    function arrange(parent, children, nameOf) {
        const there = new Map([...parent.children].map((it, index) => [nameOf(it, index), it]));
        const names = new Set(children.map(nameOf));
        there.forEach((it, name) => names.has(name) || it.remove());
        let at = parent.firstElementChild;
        children.forEach((child, index) => {
            const old = there.get(nameOf(child, index));
            if (old && old === at) {
                at = at.nextElementSibling;
            } else {
                parent.insertBefore(old || child, at);
            }
            if (old) {
                morph(old, child);
            }
        });
    }

    /* Updates the rows. Bodies stay, even without a row; django-unfold has one for each row. */
    function updateRows(table, newTable) {
        const link = (row, index) => row.querySelector("a")?.getAttribute("href") ?? index;
        const now = newTable ? [...newTable.tBodies] : [];
        now.slice(table.tBodies.length).forEach((body) => table.append(body.cloneNode()));
        [...table.tBodies].forEach((body, index) => {
            arrange(body, index < now.length ? [...now[index].rows] : [], link);
        });
    }

    /* Updates the offer to select all pages, which is hidden while there is only one page. */
    function updateBar(form, newForm) {
        const counter = form.querySelector(".action-counter");
        const newCounter = newForm.querySelector(".action-counter");
        const offered = newForm.querySelector(".question") !== null;
        form.classList.toggle("redislock-one-page", !offered);
        if (counter && offered && !form.querySelector(".question")) {
            while (newCounter.nextSibling) {
                counter.parentNode.append(newCounter.nextSibling);
            }
        }
    }

    function updateFilters(fresh) {
        const [old, now] = [document, fresh].map(
            (page) => page.querySelector("#changelist-filter ul")?.parentElement.parentElement
        );
        if (old && now) {
            const title = (it) => it.querySelector("summary, h3")?.textContent.trim() ?? it.id;
            arrange(old, [...now.children], title);
        }
    }

    /* Calls Django's script again, with a live collection: by itself, it knows only the rows of the
       first page load. Its listeners on the window are never removed, so it is called only if there
       is an element that it has not seen. */
    function bindActions(form) {
        const parts = [...form.querySelectorAll("#result_list tbody, .question a")];
        const needed = ["#action-toggle", "button[name=index]", ".action-counter"];
        const there = needed.every((one) => form.querySelector(one) !== null);
        const done = parts.every((one) => bound.has(one));
        if (done || !there || typeof window.Actions !== "function") {
            return;
        }
        const rows = document.getElementsByClassName("action-select");
        rows.forEach = Array.prototype.forEach;
        const parent = document.querySelector(".result-list-wrapper");  // django-unfold wants it
        window.Actions(rows, parent ? {parent} : {});
        parts.forEach((one) => bound.add(one));
    }

    function updateList(fresh) {
        const [form, newForm] = [document, fresh].map((it) => it.getElementById("changelist-form"));
        const [table, newTable] = [document, fresh].map((it) => it.getElementById("result_list"));
        if (table) {
            updateRows(table, newTable);
            updateBar(form, newForm);
            form.classList.toggle("redislock-empty", !newTable);
        } else if (newTable) {
            form.replaceChildren(...newForm.childNodes);
        }
        for (const part of LIST_PARTS) {
            const old = document.querySelector(part), now = fresh.querySelector(part);
            if (old && now) {
                morph(old, now);
            }
        }
        updateFilters(fresh);
        bindActions(form);
    }

    function update(fresh) {
        const focus = document.activeElement;
        live(document).forEach((part) => morph(part, fresh.getElementById(part.id)));
        if (document.getElementById("changelist-form")) {
            updateList(fresh);
        }
        if (focus?.isConnected && focus !== document.activeElement) {
            focus.focus({preventScroll: true});  // moving it took the focus away
        }
    }

    /* Returns the new page; null if there is no answer, or not this page. */
    async function fetched() {
        const began = performance.now();
        try {
            const answer = await fetch(location.href, {headers: {"X-Redislock-Refresh": "1"}});
            const page = new DOMParser().parseFromString(await answer.text(), "text/html");
            const same = live(document).every((part) => page.getElementById(part.id));
            return answer.ok && same ? page : null;
        } catch {
            return null;
        } finally {
            took = performance.now() - began;
        }
    }

    async function refresh() {
        clearTimeout(timer);
        const number = ++asked;
        show("redislock-paused", selected());
        if (!selected() && !pressed && !document.hidden) {
            const fresh = await fetched();
            if (number !== asked) {
                return;  // a later request has been sent meanwhile
            }
            show("redislock-failed", fresh === null);
            if (fresh !== null && !selected() && !pressed) {
                update(fresh);
            }
        }
        schedule();
    }

    function schedule() {
        clearTimeout(timer);
        const seconds = Number(document.getElementById("redislock-refresh").value);
        if (seconds > 0) {
            timer = setTimeout(refresh, Math.max(seconds * 1000, REST * took));
        }
    }

    /* Loads the page anew when Redis answers again. */
    async function tryAgain() {
        if (!document.hidden) {
            const began = performance.now();
            try {
                const answer = await fetch(location.href, {headers: {"X-Redislock-Refresh": "1"}});
                if (answer.status !== 503) {
                    location.reload();
                    return;
                }
            } catch {
                // The web server is away, too.
            }
            took = performance.now() - began;
        }
        setTimeout(tryAgain, Math.max(TRY_AGAIN, REST * took));
    }

    function begin() {
        if (document.querySelector("[data-redislock-away]")) {
            setTimeout(tryAgain, TRY_AGAIN);
        }
        const select = document.getElementById("redislock-refresh");
        if (!select) {
            return;
        }
        const kept = localStorage.getItem(KEPT);
        select.value = [...select.options].some((option) => option.value === kept) ? kept : "5";
        select.addEventListener("change", () => {
            localStorage.setItem(KEPT, select.value);
            schedule();
        });
        document.addEventListener("visibilitychange", () => {
            if (!document.hidden && Number(select.value) > 0) {
                refresh();
            }
        });
        document.addEventListener("change", () => {
            show("redislock-paused", selected() && Number(select.value) > 0);
        });
        touchable().forEach((part) => {
            part.addEventListener("pointerdown", () => { pressed = true; }, true);
        });
        for (const name of ["pointerup", "pointercancel", "contextmenu"]) {
            document.addEventListener(name, () => { pressed = false; }, true);
        }
        show("redislock-control", true);
        schedule();
    }

    if (document.readyState === "loading") {
        document.addEventListener("DOMContentLoaded", begin);
    } else {
        begin();
    }
}
