/* The order of what the search finds. Sphinx takes this file instead of its own weights.

   Sphinx rates a page by its best word alone, and nearly each page here has "lock" in a title. So
   this file counts the words that stand in titles of a page. A title that is the whole question comes
   first, and its page does not come once more for its words. The names of the reference come after
   titles and before mentions. The pages of the reference, and those about how this package is made, come
   after guides. */

const BEHIND = /^(reference\/|changelog|benchmarks|mechanisms|model\/|peers)/;

const question = () => new URLSearchParams(location.search).get("q");

const isATitle = (page) => {
  const { alltitles, docnames } = Search._index;
  const asked = question().toLowerCase().trim();
  return Object.entries(alltitles).some(
    ([title, places]) =>
      title.toLowerCase().includes(asked)
      && asked.length >= title.length / 2
      && places.some(([file]) => docnames[file] === page),
  );
};

const wordsInTitles = (page) => {
  const { docnames, titleterms } = Search._index;
  const [, words] = Search._parseQuery(question());
  const pagesWith = (word) => (Object.hasOwn(titleterms, word) ? [titleterms[word]].flat() : []);
  return [...words].filter((word) => pagesWith(word).includes(docnames.indexOf(page))).length;
};

var Scorer = {
  score: ([page, , , , score, , kind]) => {
    if (kind === SearchResultKind.object) return score;
    if (kind === SearchResultKind.title) score += 20;
    if (kind === SearchResultKind.text) score += isATitle(page) ? -20 : 5 * wordsInTitles(page);
    return BEHIND.test(page) ? score - 20 : score;
  },
  // As Sphinx has them, but for the names of the reference.
  objNameMatch: 11,
  objPartialMatch: 4,
  objPrio: { 0: 0, 1: 0, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
