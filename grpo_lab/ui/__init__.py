"""Everything that a person sees: console, figures, live panel, notebooks, generated pages of docs/.

Nothing here trains or decides; it receives events and shows them.
"""
