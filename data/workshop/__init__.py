"""The data workshop: look at a dataset, clean it, split it and convert it; what is there is never changed."""

from . import mapping as mapping
from . import study as study
from .cleaning import DEFAULT as DEFAULT
from .cleaning import EVERYTHING as EVERYTHING
from .cleaning import Cleaned as Cleaned
from .cleaning import Overview as Overview
from .cleaning import Recipe as Recipe
from .cleaning import check_recipe as check_recipe
from .cleaning import clean_dataset as clean_dataset
from .cleaning import look_at as look_at
from .cleaning import read_recipe as read_recipe
from .exam import Exam as Exam
from .exam import is_right as is_right
from .exam import plain_words as plain_words
from .exam import read_exam as read_exam
from .records import Dataset as Dataset
from .splitting import convert_dataset as convert_dataset
from .splitting import split_dataset as split_dataset
