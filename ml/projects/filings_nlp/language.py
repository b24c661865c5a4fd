"""The sentences of the generated filings: facts, sentences that resemble facts, and boilerplate.

A fact has a negative and a positive form, in one section. Some pairs have the same words in another
order, others differ by a word. Words in braces are placeholders for random words: `SLOTS` for all
companies, `SECTORS` by sector, a number for `{n}`.
"""
# ruff: noqa: E501 (a pair of sentences stands on one line)

from __future__ import annotations

from collections.abc import Mapping

from ml.projects.filings_nlp.tokens import SECTIONS

BUSINESS, RISKS, LEGAL, MDNA, NOTES = SECTIONS


class Fact:
    """A fact: its section, and its wordings as pairs (negative form, positive form)."""

    def __init__(self, section: str, *wordings: tuple[str, str]) -> None:
        self.section, self.wordings = section, wordings


FACTS: Mapping[str, Fact] = {
    "debt": Fact(
        MDNA,
        ("{cash} covered less of the interest than before", "{cash} covered more of the interest than before"),
        ("{when} {cash} was not enough to repay {borrowings}", "{when} {cash} was enough to repay {borrowings}"),
        ("{borrowings} rose faster than {cash}", "{cash} rose faster than {borrowings}"),
    ),
    "covenant": Fact(
        NOTES,
        ("little room is left under {covenant}", "ample room is left under {covenant}"),
        ("the lenders had to waive {covenant} {when}", "the lenders did not have to waive {covenant} {when}"),
    ),
    "goodwill": Fact(
        NOTES,
        ("the fair value of {unit} exceeded its carrying amount by a narrow margin", "the fair value of {unit} exceeded its carrying amount by a wide margin"),
        ("goodwill of {unit} would be impaired by a change of {n} basis points", "goodwill of {unit} would not be impaired by a change of {n} basis points"),
    ),
    "demand": Fact(
        MDNA,
        ("volumes of {unit} were {n} percent below plan", "volumes of {unit} were {n} percent above plan"),
        ("{unit} lost customers {when} and won none", "{unit} won customers {when} and lost none"),
    ),
    "suit": Fact(
        LEGAL,
        ("the court denied our motion to dismiss the claims of {plaintiffs}", "the court granted our motion to dismiss the claims of {plaintiffs}"),
        ("{plaintiffs} were certified as a class {when}", "{plaintiffs} were not certified as a class {when}"),
    ),
    "recall": Fact(
        BUSINESS,
        ("we recalled {product} {when} after injuries", "we recalled no {product} {when}, and there were no injuries"),
        ("a batch of {product} failed inspection after it was shipped", "a batch of {product} failed inspection before it was shipped"),
    ),
    "controls": Fact(
        NOTES,
        ("management found a material weakness in internal control over revenue", "management found no material weakness in internal control over revenue"),
        ("entries of {n} million were posted before they were approved", "entries of {n} million were approved before they were posted"),
    ),
    "auditor": Fact(
        BUSINESS,
        ("our auditor resigned {when} and did not complete the audit", "our auditor completed the audit {when} and did not resign"),
        ("the audit committee dismissed our auditor", "the audit committee reappointed our auditor"),
    ),
    "intrusion": Fact(
        MDNA,
        ("an intruder had access to {systems} {when}", "no intruder had access to {systems} {when}"),
        ("a flaw in {systems} was disclosed and has not been fixed", "a flaw in {systems} was fixed and has not been disclosed"),
    ),
    "records": Fact(
        BUSINESS,
        ("we hold records of more {customers} than before", "we hold records of fewer {customers} than before"),
        ("records of {customers} are kept without encryption", "records of {customers} are kept with encryption"),
    ),
}  # fmt: skip
# Sentences that mention a fact without stating it for this company and year.
HYPOTHESES = (
    "if {fact}, our results could suffer",
    "we may find that {fact}",
    "in the future it could be that {fact}",
)
ELSEWHERE = (
    "a competitor reported that {fact}",
    "two years ago {fact}",
    "at a company that we sold, {fact}",
)

SLOTS: Mapping[str, tuple[str, ...]] = {
    "when": ("during the year", "in the fourth quarter", "since the last report", "in the second half", "by year end"),
    "borrowings": ("our borrowings", "the revolving facility", "the term loans", "our net debt"),
    "cash": ("cash from operations", "our operating cash flow", "the cash that we generate"),
    "covenant": ("the leverage covenant", "the covenant on interest coverage", "the covenant of our facility"),
    "plaintiffs": ("the plaintiffs", "several shareholders", "former employees", "the purchasers"),
    "systems": ("our systems", "the ordering system", "our network", "the servers of a supplier"),
    "region": ("North America", "Europe", "Asia", "South America", "the Gulf", "the Nordic countries"),
    "area": ("tax", "pension", "lease", "insurance", "currency", "interest rate"),
}  # fmt: skip

SECTORS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "energy": {
        "product": ("gas turbines", "drilling services", "transformers", "pipelines", "solar inverters"),
        "unit": ("the upstream unit", "the grid unit", "the services unit", "the storage unit"),
        "customers": ("utilities", "operators", "municipalities", "refineries"),
    },
    "software": {
        "product": ("payroll software", "design tools", "data platforms", "mobile applications", "licences"),
        "unit": ("the cloud unit", "the licence unit", "the support unit", "the payments unit"),
        "customers": ("subscribers", "developers", "banks", "small businesses"),
    },
    "retail": {
        "product": ("furniture", "groceries", "toys", "garden tools", "cosmetics"),
        "unit": ("the online unit", "the outlet unit", "the wholesale unit", "the franchise unit"),
        "customers": ("shoppers", "members", "households", "franchisees"),
    },
    "health": {
        "product": ("infusion pumps", "vaccines", "generic drugs", "implants", "diagnostic kits"),
        "unit": ("the devices unit", "the clinics unit", "the generics unit", "the laboratory unit"),
        "customers": ("patients", "hospitals", "insurers", "pharmacies"),
    },
    "industry": {
        "product": ("bearings", "packaging", "forklifts", "coatings", "valves"),
        "unit": ("the castings unit", "the packaging unit", "the fleet unit", "the coatings unit"),
        "customers": ("manufacturers", "shipyards", "builders", "carmakers"),
    },
}  # fmt: skip

# Boilerplate sentences by section.
USUAL: Mapping[str, tuple[str, ...]] = {
    BUSINESS: (
        "{name} sells {product} and {product} to {customers} in {region}",
        "we compete on price, on quality and on the time of delivery of {product}",
        "we employ {n} thousand people, most of them in {region}",
        "our largest customers are {customers}, none of which has more than {n} percent of sales",
        "we own {n} patents on {product} and apply for others each year",
        "raw materials for {product} come from several suppliers in {region}",
        "{unit} was founded in {region} and has {n} sites",
        "our business is seasonal, and {customers} buy more in the second half",
    ),
    RISKS: (
        "competition for {customers} in {region} is strong and may become stronger",
        "a change of {area} law in {region} could increase what we pay",
        "the price of what {product} are made of varies and is not in our hands",
        "we depend on few people who know how {product} are made",
        "{customers} may not pay on time when the economy of {region} is weak",
        "our insurance may not cover a fire at a site of {unit}",
        "the price of our shares has varied and will vary",
    ),
    LEGAL: (
        "from time to time we are a party to proceedings that belong to our business",
        "a {area} matter in {region} was closed at no cost",
        "mine safety disclosures do not apply",
        "we keep {n} million aside for {area} matters",
    ),
    MDNA: (
        "sales of {unit} were {n} million in {region}",
        "selling expenses were {n} percent of sales",
        "the {area} rate was {n} percent, as in the year before",
        "exchange rates changed sales in {region} by {n} percent",
        "we invested {n} million in {unit} and in {region}",
        "critical estimates are those of {area} and of inventories",
        "sales to {customers} were {n} percent of the total",
    ),
    NOTES: (
        "inventories are stated at the lower of cost and net realisable value",
        "property is depreciated over {n} years on a straight line",
        "{area} obligations are measured by an actuary at {n} million",
        "{unit} is a segment, and so are the others",
        "contracts with {customers} have a term of {n} months",
        "{area} expenses were {n} million",
        "no event after the balance sheet date changes these statements",
    ),
}
