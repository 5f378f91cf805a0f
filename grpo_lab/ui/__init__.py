"""The user interface: console, figures, live panel, notebooks, and the generated pages of docs/.

This room receives events and shows them; training, measurement and grading belong to the rooms below.
"""
