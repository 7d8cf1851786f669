"""GPUs, versions, formats and recipes as data: tables with their sources inside, read and looked up."""
