package import ApusContract
package import ApusCore

/// Decides which version a device is offered (IV-E1).
///
/// A device is offered the newest version that
///
/// - is newer than its own, and whose image is complete;
/// - is active, and has not failed too often (``FirmwareRelease/mustStop(_:)``);
/// - may be installed over its own: `from` is not newer than it. Where the newest version requires one that the device
///   does not have, the device is offered that one first, and the newest afterwards;
/// - has chosen the device: by its percentage and by its groups.
///
/// **Percentage.** Each device has a fixed place from 0 to 9,999 for each version, by a hash of both. A version is
/// offered to the places below its percentage, so a larger one adds devices and removes none, and the first devices of
/// one version are not those of another.
///
/// Pure.
package enum FirmwareRollout {
    /// The versions that the device may be offered, if groups and outcomes allow it: the newest first.
    package static func candidates(
        for device: DeviceID, current: FirmwareVersion, in product: FirmwareProduct
    ) -> [FirmwareRelease] {
        product.releases.reversed().filter { release in
            guard let version = FirmwareVersion(release.version), version > current, release.sealed,
                release.state == .active
            else { return false }
            // A minimum version that cannot be read excludes all devices, and not none.
            let isOldEnough = release.from.isEmpty || FirmwareVersion(release.from).map { $0 <= current } ?? false
            return isOldEnough && isChosen(device, by: release)
        }
    }

    /// The version that the device is offered; nil if there is none.
    ///
    /// - Parameters:
    ///   - candidates: as ``candidates(for:current:in:)`` returns them.
    ///   - groups: the groups that the device is in, of those that candidates name.
    ///   - tallies: the outcomes by number of the image. A version without one has none.
    package static func offer(
        of candidates: [FirmwareRelease], groups: Set<String>, tallies: [UInt64: FirmwareCount]
    ) -> FirmwareRelease? {
        candidates.first { release in
            (release.groups.isEmpty || release.groups.contains { groups.contains($0) })
                && !release.mustStop(tallies[release.image] ?? FirmwareCount())
        }
    }

    /// True if the percentage includes the device.
    package static func isChosen(_ device: DeviceID, by release: FirmwareRelease) -> Bool {
        place(of: device, version: release.version) < UInt64(release.percentage) * 100
    }

    /// 0 to 9,999.
    static func place(of device: DeviceID, version: String) -> UInt64 {
        StableHash.hash("\(version)/\(device)") % 10_000
    }
}

extension FirmwareRelease {
    /// True if the failures since the version was activated are at least ``stopFailures``, and more than
    /// ``stopFailurePercent`` of the outcomes.
    package func mustStop(_ tally: FirmwareCount) -> Bool {
        guard stopFailures > 0 else { return false }
        // A report that was on its way when the version was activated may make the count smaller than it was.
        let failed = tally.failed > failedBefore ? tally.failed - failedBefore : 0
        let installed = tally.installed > installedBefore ? tally.installed - installedBefore : 0
        return failed >= UInt64(stopFailures) && failed * 100 > UInt64(stopFailurePercent) * (failed + installed)
    }
}
