"""State of which a process has one object, and what a forked child has instead."""

from pathlib import Path

from programs import run


def test_a_child_starts_anew_but_keeps_the_settings(tmp_path: Path) -> None:
    program = """
        import os, sys, threading, torch, cairn
        from cairn._process import part
        from cairn._async.async_saver import DefaultSavers
        from cairn._async.pending_saves import PendingSaves
        from cairn._settings import save_deadlines
        from cairn._settings import pickle_allowed

        directory = sys.argv[1]
        cairn.configure_saves(deadline_seconds=7)
        cairn.configure_async_saves(generations=3, fail_at_exit=True)
        cairn.install(allow_pickle=True)
        cairn.async_save({"t": torch.ones(2)}, checkpoint_id=directory).result()
        assert cairn.report().calls and part(DefaultSavers).by_process and part(PendingSaves).saves
        assert part(PendingSaves) is part(PendingSaves)
        child = os.fork()
        if child == 0:
            assert not cairn.report().calls
            assert not part(DefaultSavers).by_process and not part(PendingSaves).saves
            assert part(DefaultSavers).settings["generations"] == 3
            assert "fail_at_exit" not in part(DefaultSavers).settings
            assert save_deadlines()[0] == 7 and pickle_allowed(None)
            cairn.async_save({"t": torch.zeros(2)}, checkpoint_id=directory + "/child").result()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert part(DefaultSavers).by_process
        print("done")
    """
    assert run(program, tmp_path / "checkpoint") == "done"


def test_a_fork_during_an_installation_does_not_block_that_of_the_child() -> None:
    program = """
        import os, threading, cairn
        from cairn._process import part
        from cairn._settings import Installation

        cairn.install()
        held, release = threading.Event(), threading.Event()

        def hold() -> None:
            with part(Installation).lock:
                held.set()
                release.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        child = os.fork()
        if child == 0:
            cairn.uninstall()  # the thread that holds the lock is not in this process
            os._exit(0)
        release.set()
        thread.join()
        assert os.waitpid(child, 0)[1] == 0
        print("done")
    """
    assert run(program) == "done"
