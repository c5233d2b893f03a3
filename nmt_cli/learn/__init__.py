"""`nmt learn`: claims that lectures on attention make, each as a small experiment that runs here (docs/learn.md).

results.py has the data of a claim and of its pictures, lab.py trains the small models that claims share, mechanisms.py
and models.py have the experiments, claims.py lists them with their rules, draw.py and page.py draw the results.
"""
