"""Several ranks that train one model together: how they meet, agree, divide the work and pay for it."""
