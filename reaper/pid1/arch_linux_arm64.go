package pid1

const isArm64 = 1
