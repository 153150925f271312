"""A list file of images of one's own: lines `relative/path.jpg label`."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tailshift.data.class_names import folder_names
from tailshift.data.dataset import DATASETS
from tailshift.data.decoding import ImageFiles
from tailshift.data.file_split import FileSplit
from tailshift.data.list_files import check_every_class, read_list
from tailshift.data.own_images import Found, OwnImages


@dataclass(frozen=True)
class ImageList(OwnImages):
    """Labels count from 0; a class is named after its folder where it has one."""

    sentence: ClassVar[str] = "Your own images: a list file, `relative/path.jpg label`."
    name: ClassVar[str] = "list"
    form: ClassVar[str] = "a list file with lines `relative/path.jpg label`"

    val_path: str = ""
    """Another list file, of the validation split; empty holds one out."""

    test_path: str = ""
    """Another list file, of the test split; empty holds one out."""

    image_root: str = ""
    """Folder that the paths in the lists start from; empty is the list's own."""

    def read(self, path: Path) -> Found:
        """Return the splits that have a list."""
        train = read_list(path)
        num_classes = int(train.labels.max()) + 1
        check_every_class(train.labels, num_classes, f"`{path}`")
        root = Path(self.image_root).expanduser() if self.image_root else path.parent
        listed = {"train": train}
        for name, other in (("val", self.val_path), ("test", self.test_path)):
            if other:
                listed[name] = read_list(
                    Path(other).expanduser(), num_classes=num_classes
                )
        splits = {
            name: FileSplit(ImageFiles(root, part.paths), part.labels)
            for name, part in listed.items()
        }
        return Found(splits, folder_names(train.paths, train.labels, num_classes))


DATASETS.add("list", ImageList)
