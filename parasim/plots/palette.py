"""Colours that pictures and pages share: a colour-blind safe palette (Okabe and Ito 2008). No matplotlib here."""

from __future__ import annotations

PHASE_COLOURS = {
    "F": "#56B4E9",
    "B": "#009E73",
    "I": "#0072B2",
    "W": "#F0E442",
    "R": "#CC79A7",
    "S": "#6F6F6F",
}
OTHER_COLOUR = "#B8B8B8"
AXIS_COLOURS = {"tp": "#E69F00", "cp": "#A6761D", "ep": "#9E5FA8", "dp": "#8C2D04", "pp": "#D55E00", "other": "#4D4D4D"}
IDLE_COLOUR = "#ECECEC"
CATEGORY_COLOURS = {
    "parameters": "#0072B2",
    "gradients": "#56B4E9",
    "optimizer": "#6F6F6F",
    "activations": "#E69F00",
    "gathered": "#009E73",
    "buffers": "#CC79A7",
}
LINK_COLOURS = {
    "scale_up": "#009E73",
    "nic": "#56B4E9",
    "leaf": "#0072B2",
    "spine": "#D55E00",
    "dcn": "#CC79A7",
    "pcie": "#E69F00",
    "host": "#8C6D1F",
    "ici": "#009E73",
}
INK = "#222222"
MUTED = "#777777"
PHASE_NAMES = {"F": "F forward", "B": "B backward", "I": "I input gradient", "W": "W weight gradient", "R": "R recompute", "S": "S optimizer"}
# What takes the place of colours that are hard to see on a dark background; still apart from the others for every form of colour blindness.
ON_DARK = {
    "#8C2D04": "#C9553F",
    "#4D4D4D": "#9A9A9A",
    "#6F6F6F": "#8E8E8E",
    "#0072B2": "#3C8FD0",
    "#A6761D": "#B98A35",
    "#8C6D1F": "#B0904A",
    "#9E5FA8": "#B57FC0",
}
