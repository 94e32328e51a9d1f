"""Hardware-bound regression testing of LLM fine-tuning: a training configuration as a claim about
a card's memory, checked by running the step.
"""

__version__ = "0.1.0"
