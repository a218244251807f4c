"""The numbers of the paper's Table II (Fashion-MNIST), to stand beside ours: PSNR, SSIM, FID, KID x 10^3 for each task."""

TASKS = ("super-resolution", "inpainting", "deblurring")

#: By the paper's name of the method: four numbers per task.
TABLE_II: dict[str, tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]] = {
    "DPM-Solver": ((15.74, 0.394, 43.89, 31.4), (13.83, 0.320, 49.46, 36.5), (14.69, 0.343, 71.10, 55.2)),
    "Heun": ((15.20, 0.365, 55.18, 41.2), (13.35, 0.294, 61.19, 47.1), (13.94, 0.300, 94.13, 78.7)),
    "Euler": ((19.05, 0.599, 20.27, 13.3), (16.59, 0.516, 17.64, 10.3), (18.09, 0.509, 23.60, 15.1)),
    "Multistep": ((18.76, 0.518, 22.34, 14.2), (17.75, 0.523, 19.84, 11.5), (18.22, 0.509, 23.09, 15.6)),
    "MACS": ((18.97, 0.557, 19.85, 12.1), (17.99, 0.569, 17.52, 9.6), (18.55, 0.541, 19.58, 12.9)),
}
#: NFE as printed.
NFE = {"DPM-Solver": 8, "Heun": 40, "Euler": 2, "Multistep": 2, "MACS": 2}


def published(method: str, task: str) -> tuple[float, ...]:
    """PSNR, SSIM, FID and KID x 10^3 of a method on a task, as printed."""
    return TABLE_II[method][TASKS.index(task)]
