import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from fedlora.adapters import ModelError
from fedlora.models.conversion import converted
from fedlora.models.source import resolve

gguf = pytest.importorskip("gguf")

HEADS = {"attn_q": 4, "attn_k": 2}
NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    """The name that llama.cpp gives to a tensor of a Llama."""
    if not name.startswith("model.layers."):
        return {"model.embed_tokens": "token_embd", "model.norm": "output_norm"}[
            name.removesuffix(".weight")
        ] + ".weight"
    _, _, block, inner = name.removesuffix(".weight").split(".", 3)
    return f"blk.{block}.{NAMES[inner]}.weight"


def write_gguf(folder: Path, tokenizer: PreTrainedTokenizerFast, file: Path) -> None:
    """Write a tiny Llama as llama.cpp does: own names, rotary halves of q and k interleaved."""
    config = AutoModelForCausalLM.from_pretrained(folder).config
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    missing = config.vocab_size - len(vocabulary)
    writer.add_tokenizer_model("gpt2")
    spare = [f"<spare{index}>" for index in range(missing)]
    writer.add_token_list([token for token, _ in vocabulary] + spare)
    writer.add_token_types([3] * 3 + [1] * (len(vocabulary) - 3) + [3] * missing)
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_chat_template(tokenizer.chat_template)
    for name, tensor in load_file(folder / "model.safetensors").items():
        kind = gguf_name(name).split(".")[-2]
        if kind in HEADS:
            heads = tensor.view(HEADS[kind], 2, -1, tensor.shape[1])
            tensor = heads.transpose(1, 2).reshape(tensor.shape)
        writer.add_tensor(gguf_name(name), tensor.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def file(
    tiny_causal: Path,
    tiny_tokenizer: PreTrainedTokenizerFast,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """A tiny GGUF, and a cache that is empty."""
    monkeypatch.setenv("FEDLORA_CACHE", str(tmp_path / "cache"))
    write_gguf(tiny_causal, tiny_tokenizer, tmp_path / "tiny.gguf")
    return tmp_path / "tiny.gguf"


def test_a_gguf_becomes_the_folder_it_was_made_from(file: Path, tiny_causal: Path) -> None:
    folder = resolve(str(file))
    made = load_file(folder / "model.safetensors")
    original = load_file(tiny_causal / "model.safetensors")
    assert made.keys() == original.keys()
    assert all(torch.equal(made[name], original[name]) for name in original)
    x = torch.arange(3, 20)[None]
    with torch.no_grad():
        ours = AutoModelForCausalLM.from_pretrained(folder)(x).logits
        theirs = AutoModelForCausalLM.from_pretrained(tiny_causal)(x).logits
    assert torch.equal(ours, theirs)


def test_the_tokenizer_and_its_chat_template_survive(
    file: Path, tiny_tokenizer: PreTrainedTokenizerFast
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(resolve(str(file)))
    chat = [{"role": "user", "content": "Which key opens the store room?"}]
    kwargs = {"add_generation_prompt": True, "return_dict": False}
    assert tokenizer.apply_chat_template(chat, **kwargs) == tiny_tokenizer.apply_chat_template(
        chat, **kwargs
    )
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1, 2)


def test_the_folder_is_no_longer_taken_for_a_quantized_model(file: Path, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(resolve(str(file)))
    assert not hasattr(model.config, "quantization_config")
    model.save_pretrained(tmp_path / "copy")  # transformers refuses this for quantized ones


def test_it_is_converted_once_and_found_by_content(file: Path, tmp_path: Path) -> None:
    first = converted(file)
    stamp = (first / "model.safetensors").stat().st_mtime_ns
    moved = tmp_path / "elsewhere" / "tiny.gguf"
    moved.parent.mkdir()
    file.rename(moved)
    assert converted(moved) == first
    assert (first / "model.safetensors").stat().st_mtime_ns == stamp


def test_what_a_killed_conversion_left_is_cleared(file: Path) -> None:
    folder = converted(file)
    left = folder.with_name(f".{folder.name}.abc") / folder.name
    folder.rename(folder.with_name("gone"))
    left.mkdir(parents=True)
    (left / "model.safetensors").write_bytes(b"half")
    assert converted(file) == folder
    assert not left.parent.exists()


def test_three_processes_at_once_get_one_conversion(file: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from fedlora.models import conversion\n"
        "convert = conversion._convert\n"
        "def counted(*args): print('converting'); convert(*args)\n"
        "conversion._convert = counted\n"
        "folder = conversion.converted(Path(sys.argv[1]))\n"
        "print(folder, (folder / 'model.safetensors').stat().st_size)"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(file)],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        for _ in range(3)
    ]
    outputs = [process.communicate(timeout=120)[0].splitlines() for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert sum("converting" in lines for lines in outputs) == 1
    assert len({lines[-1] for lines in outputs}) == 1
    models = Path(outputs[0][-1].split()[0]).parent
    assert len([path for path in models.iterdir() if path.is_dir()]) == 1


def test_a_malformed_gguf_is_an_error_and_leaves_nothing(tmp_path: Path, file: Path) -> None:
    data = file.read_bytes()
    for name, content in {"empty": b"", "text": b"hello", "cut": data[: len(data) // 2]}.items():
        broken = tmp_path / f"{name}.gguf"
        broken.write_bytes(content)
        with pytest.raises(ModelError, match=f"cannot read .*{name}.gguf"):
            converted(broken)
    models = tmp_path / "cache" / "models"
    assert [path for path in models.iterdir() if path.suffix != ".lock"] == []


def test_a_cache_that_cannot_be_made_says_what_to_set(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDLORA_CACHE", str(file / "below-a-file"))
    with pytest.raises(ModelError, match="set FEDLORA_CACHE"):
        converted(file)
