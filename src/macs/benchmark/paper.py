"""The numbers of the paper's tables, to stand beside ours: PSNR, SSIM, FID and KID x 10^3 of each method on each task."""

from dataclasses import dataclass

#: NFE as printed, the same in all tables.
NFE = {"DPM-Solver": 8, "Heun": 40, "Euler": 2, "Multistep": 2, "MACS": 2}

Numbers = tuple[float, float, float, float]


@dataclass(frozen=True)
class PaperTable:
    """A table: the side and number of its test images, heading and guidance scale of each task, numbers of each method."""

    number: str
    side: int
    images: int
    tasks: dict[str, str]
    gamma: dict[str, float]
    methods: dict[str, tuple[Numbers, ...]]

    def published(self, method: str, task: str) -> Numbers:
        """PSNR, SSIM, FID and KID x 10^3 of a method on a task, as printed."""
        return self.methods[method][list(self.tasks).index(task)]


#: LSUN Bedroom, 300 images of 256 pixels.
TABLE_I = PaperTable(
    "I",
    256,
    300,
    {
        "super-resolution": r"Super-Resolution $\times4$",
        "inpainting": "Inpainting",
        "deblurring": "Linear Deblurring",
    },
    {"super-resolution": 0.8, "inpainting": 0.8, "deblurring": 0.4},
    {
        "DPM-Solver": ((18.22, 0.338, 75.22, 25.30), (19.32, 0.759, 48.09, 5.48), (16.97, 0.288, 81.94, 33.10)),
        "Heun": ((17.57, 0.270, 84.67, 31.8), (19.53, 0.779, 45.86, 4.92), (16.54, 0.219, 98.04, 46.8)),
        "Euler": ((25.51, 0.768, 40.85, 5.83), (22.40, 0.825, 39.92, 5.09), (23.09, 0.672, 41.56, 9.32)),
        "Multistep": ((26.03, 0.771, 40.90, 5.67), (22.51, 0.830, 39.82, 4.69), (24.41, 0.700, 41.57, 8.61)),
        "MACS": ((25.70, 0.765, 40.13, 5.54), (22.11, 0.830, 39.44, 4.54), (24.02, 0.690, 40.90, 8.32)),
    },
)
#: Fashion-MNIST.
TABLE_II = PaperTable(
    "II",
    28,
    10_000,
    {
        "super-resolution": r"Super-Resolution $\times2$",
        "inpainting": "Inpainting",
        "deblurring": "Linear Deblurring",
    },
    {"super-resolution": 0.15, "inpainting": 0.15, "deblurring": 0.15},
    {
        "DPM-Solver": ((15.74, 0.394, 43.89, 31.4), (13.83, 0.320, 49.46, 36.5), (14.69, 0.343, 71.10, 55.2)),
        "Heun": ((15.20, 0.365, 55.18, 41.2), (13.35, 0.294, 61.19, 47.1), (13.94, 0.300, 94.13, 78.7)),
        "Euler": ((19.05, 0.599, 20.27, 13.3), (16.59, 0.516, 17.64, 10.3), (18.09, 0.509, 23.60, 15.1)),
        "Multistep": ((18.76, 0.518, 22.34, 14.2), (17.75, 0.523, 19.84, 11.5), (18.22, 0.509, 23.09, 15.6)),
        "MACS": ((18.97, 0.557, 19.85, 12.1), (17.99, 0.569, 17.52, 9.6), (18.55, 0.541, 19.58, 12.9)),
    },
)
#: LSUN Bedroom again, by a learnt blur.
TABLE_III = PaperTable(
    "III",
    256,
    300,
    {"nonlinear-deblurring": "Nonlinear Deblurring"},
    {"nonlinear-deblurring": 0.5},
    {
        "DPM-Solver": ((22.41, 0.565, 57.07, 12.5),),
        "Heun": ((22.47, 0.563, 56.05, 13.4),),
        "Euler": ((25.81, 0.791, 40.44, 3.44),),
        "Multistep": ((25.85, 0.815, 40.70, 3.10),),
        "MACS": ((25.81, 0.811, 39.90, 3.07),),
    },
)
