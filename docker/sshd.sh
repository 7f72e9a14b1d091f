#!/usr/bin/env bash
# A node on which other nodes start ranks: sshd as an ordinary user, on port 2222.
#
# The key of the nodes is in ~/.ssh: Kubernetes' MPI operator mounts it there, or this script makes it at the first start
# if the nodes share that folder as a volume. It is never part of the image.
set -euo pipefail
keys=$HOME/.ssh
if [[ ! -f $keys/authorized_keys ]]; then
    mkdir -p "$keys"
    chmod 700 "$keys"
    (
        flock 9
        if [[ ! -f $keys/authorized_keys ]]; then
            ssh-keygen -q -t ed25519 -N '' -f "$keys/id_ed25519"
            cp "$keys/id_ed25519.pub" "$keys/new"
            mv "$keys/new" "$keys/authorized_keys"
        fi
    ) 9>"$keys/.lock"
fi
own=$(mktemp -d)
ssh-keygen -q -t ed25519 -N '' -f "$own/hostkey"
# A shell that sshd starts does not inherit the image's PATH.
exec /usr/sbin/sshd -D -e -p 2222 -f /dev/null -h "$own/hostkey" -o "PidFile=$own/pid" -o UsePAM=no -o StrictModes=no \
    -o PasswordAuthentication=no -o "AuthorizedKeysFile=$keys/authorized_keys" -o "SetEnv=PATH=$PATH"
