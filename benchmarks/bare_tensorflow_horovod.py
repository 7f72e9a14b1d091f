"""A hand-written loop in TensorFlow: Keras layers, tf.function and Horovod's DistributedGradientTape."""

import bare
import horovod.tensorflow as hvd
import tensorflow as tf

name, steps = bare.arguments()
hvd.init()
images, labels, weights = bare.load(name)
images = images.transpose(0, 2, 3, 1)
layers = tf.keras.layers
net = tf.keras.Sequential([
    tf.keras.Input((28, 28, 1)), layers.Conv2D(20, 3, activation="relu"), layers.AveragePooling2D(2),
    layers.Conv2D(50, 5, activation="relu"), layers.AveragePooling2D(2), layers.Flatten(),
    layers.Dense(128, activation="relu"), layers.Dense(10),
])  # fmt: skip
for variable, value in zip(net.trainable_variables, weights.values(), strict=True):
    variable.assign(value.transpose(2, 3, 1, 0) if value.ndim == 4 else value.T)
hvd.broadcast_variables(net.trainable_variables, root_rank=0)
criterion = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = tf.keras.optimizers.SGD(bare.LR)


@tf.function
def train_step(batch, target):
    with tf.GradientTape() as tape:
        loss = criterion(target, net(batch, training=True))
    tape = hvd.DistributedGradientTape(tape)
    optimizer.apply_gradients(zip(tape.gradient(loss, net.trainable_variables), net.trainable_variables, strict=True))
    return loss


clock = bare.Clock()
for step, rows in enumerate(bare.batches(len(images), steps, hvd.rank(), hvd.size())):
    loss = train_step(images[rows], labels[rows])
    clock.tick(step, lambda loss=loss: loss)
if hvd.rank() == 0:
    clock.report()
