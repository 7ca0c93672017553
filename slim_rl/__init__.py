"""Does a language model learn to ask questions when only asking pays?"""
