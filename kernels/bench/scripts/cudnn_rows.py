"""RMSNorm and LayerNorm through cuDNN's own graphs (the package nvidia-cudnn-frontend): PyTorch has no road to them."""

import functools

import torch

EPS = 1e-5


@functools.cache
def process_handle():
    import cudnn

    return cudnn.create_handle()


class CudnnRowNorm:
    """A case's graph, built by the first call and used by later ones."""

    def __init__(self, case):
        import cudnn

        self.cudnn = cudnn
        self.case = case
        self.handle = process_handle()
        self.graph = None

    def call(self, inputs):
        """The call to be timed, over these inputs."""
        tensors = self._tensors(inputs)
        if self.graph is None:
            self._build(tensors)
        workspace = torch.empty(max(1, self.graph.get_workspace_size()), dtype=torch.uint8, device="cuda")
        pack = {node: tensors[name] for name, node in self.nodes.items()}
        main = tensors["dx" if inputs.backward else "y"]

        def run():
            self.cudnn.set_stream(handle=self.handle, stream=torch.cuda.current_stream().cuda_stream)
            self.graph.execute(pack, workspace, handle=self.handle)
            return main.view(self.case["shape"])

        return run

    def _tensors(self, inputs):
        """Inputs and outputs in cuDNN's four dimensions, channels last."""
        rows, hidden_size = self.case["shape"]
        centred = self.case["op"] == "layer_norm"

        def four(tensor, first):
            return tensor.detach().as_strided((first, hidden_size, 1, 1), (hidden_size, 1, hidden_size, hidden_size))

        x = four(inputs.x, rows)
        tensors = {"x": x, "scale": four(inputs.weight, 1)}
        statistics = (rows, 1, 1, 1)
        eps = torch.full((1, 1, 1, 1), EPS, dtype=torch.float32)
        if inputs.backward:
            wide = inputs.x.detach().float()
            mean = wide.mean(1) if centred else torch.zeros(rows, device="cuda")
            rstd = ((wide - mean[:, None]).square().mean(1) + EPS).rsqrt()
            tensors |= {"dy": four(inputs.dy, rows), "rstd": rstd.view(statistics), "dx": torch.empty_like(x),
                        "dscale": torch.empty_like(tensors["scale"])}
            if centred:
                tensors |= {"mean": mean.view(statistics), "dbias": torch.empty_like(tensors["scale"])}
            return tensors
        tensors |= {"eps": eps, "y": torch.empty_like(x), "rstd": torch.empty(statistics, device="cuda")}
        if centred:
            tensors |= {"bias": four(inputs.bias, 1), "mean": torch.empty(statistics, device="cuda")}
        return tensors

    def _build(self, tensors):
        cudnn = self.cudnn
        kinds = {torch.float32: cudnn.data_type.FLOAT, torch.float16: cudnn.data_type.HALF,
                 torch.bfloat16: cudnn.data_type.BFLOAT16}
        graph = cudnn.pygraph(intermediate_data_type=cudnn.data_type.FLOAT, compute_data_type=cudnn.data_type.FLOAT,
                              handle=self.handle)
        self.nodes = {}

        def node(name):
            tensor = tensors[name]
            self.nodes[name] = graph.tensor(
                name=name, dim=list(tensor.size()), stride=list(tensor.stride()), data_type=kinds[tensor.dtype],
                is_pass_by_value=not tensor.is_cuda)
            return self.nodes[name]

        def output(name, made):
            made.set_output(True).set_data_type(kinds[tensors[name].dtype])
            self.nodes[name] = made

        training = cudnn.norm_forward_phase.TRAINING
        if self.case["direction"] == "backward" and self.case["op"] == "layer_norm":
            made = graph.layernorm_backward(name="norm", grad=node("dy"), input=node("x"), scale=node("scale"),
                                            mean=node("mean"), inv_variance=node("rstd"))
            names = ("dx", "dscale", "dbias")
        elif self.case["direction"] == "backward":
            made = graph.rmsnorm_backward(name="norm", grad=node("dy"), input=node("x"), scale=node("scale"),
                                          inv_variance=node("rstd"), has_dbias=False)
            names = ("dx", "dscale")
        elif self.case["op"] == "layer_norm":
            made = graph.layernorm(name="norm", norm_forward_phase=training, input=node("x"), scale=node("scale"),
                                   bias=node("bias"), epsilon=node("eps"))
            names = ("y", "mean", "rstd")
        else:
            made = graph.rmsnorm(name="norm", norm_forward_phase=training, input=node("x"), scale=node("scale"),
                                 epsilon=node("eps"))
            names = ("y", "rstd")
        for name, tensor in zip(names, made):
            output(name, tensor)
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        graph.check_support()
        graph.build_plans()
        self.graph = graph
