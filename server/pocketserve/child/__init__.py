"""Child processes: started, limited, talked to, and ended with all that they started."""
