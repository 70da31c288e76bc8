"""What runs inside vLLM's processes: these modules import vLLM, and only vLLM imports them."""
