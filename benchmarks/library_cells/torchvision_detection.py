# %% Faster R-CNN: images of several sizes are searched, then trained on
# needs: torchvision
import torch
from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_320_fpn, fasterrcnn_resnet50_fpn

torch.manual_seed(0)
torch.backends.cudnn.deterministic = True
device = "cuda" if torch.cuda.is_available() else "cpu"
small = (fasterrcnn_mobilenet_v3_large_320_fpn, 64, 1)
build, smallest, rounds = (fasterrcnn_resnet50_fpn, 320, 6) if device == "cuda" else small
model = build(
    weights=None,
    weights_backbone=None,
    num_classes=5,
    min_size=smallest,
    max_size=2 * smallest,
    rpn_pre_nms_top_n_train=100,
    rpn_pre_nms_top_n_test=100,
    rpn_post_nms_top_n_train=50,
    rpn_post_nms_top_n_test=50,
    box_detections_per_img=20,
).to(device)
sizes = [(smallest, smallest), (smallest, smallest * 3 // 2), (smallest * 5 // 4, smallest)]
images = [torch.rand(3, *size, device=device) for size in sizes]
corners = torch.tensor([[4.0, 4.0, 30.0, 30.0], [20.0, 10.0, 60.0, 50.0]], device=device)
targets = [{"boxes": corners, "labels": torch.tensor([1, 3], device=device)} for _ in images]
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
losses = []

# %%grape
model.eval()
with torch.no_grad():
    for _ in range(rounds):
        found = [model([image])[0] for image in images]

# %%grape
model.train()
for _ in range(rounds):
    for image, target in zip(images, targets, strict=True):
        parts = model([image], [target])
        loss = sum(parts.values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append({name: value.item() for name, value in parts.items()})

# %%
RESULT = {"found": found, "losses": losses, "model": model, "optimizer": optimizer}
